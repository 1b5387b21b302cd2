"""One file of a hub: fetched in pieces that survive this process, and hashed on the way.

The hub's own library drops a partial file when its process ends; of sixteen gigabytes that is
too much to lose. Here the part stays beside the cache's blobs, and the next try asks for the
rest. A blob gets its name only once its hash is right.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import httpx2
from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status

from headway.core.base.errors import StartError

CHUNK_BYTES = 1 << 20
TRIES = 5  # in a row that bring nothing
FIRST_PAUSE_S = 0.5
TIMEOUT_S = 30.0
PARTIAL = 206
UNSATISFIABLE = 416
BUSY = (408, 429, 500, 502, 503, 504)
SHA256_DIGITS = 64
Told = Callable[[int], None]  # bytes of the file that are here


class Blob(NamedTuple):
    """A file as the hub describes it."""

    name: str  # for messages
    url: str
    num_bytes: int
    checksum: str  # SHA-256 of the content, or git's SHA-1 of it with its length; hex


class BadChecksum(StartError):
    """What came is not what the hub said it would be."""


class _Interrupted(Exception):
    """The connection gave way, or the server was busy; the next try goes on from here."""


def fetch_blob(
    blob: Blob,
    target: Path,
    headers: dict[str, str],
    told: Told,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Have the file at `target`, whole and checked.

    Raises StartError when the hub gives way too often or sends something else, OSError when
    the disk does not take it, and the hub library's errors for what the hub refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.headway.incomplete")
    with _locked(part) as file:
        if target.exists():  # another process brought it while this one waited
            told(blob.num_bytes)
            part.unlink(missing_ok=True)
            return
        was_begun = file.seek(0, os.SEEK_END) > 0
        _complete(blob, file, headers, told, pause)
        if was_begun and not _is_right(blob, file):
            # The older part may be of a disk that filled up, or a machine that lost power.
            file.truncate(0)
            _complete(blob, file, headers, told, pause)
        if not _is_right(blob, file):
            part.unlink(missing_ok=True)
            raise BadChecksum(
                f"{blob.name} from {blob.url} has not the checksum {blob.checksum} that the hub "
                "states; nothing of it was kept; check HF_ENDPOINT and proxies, and try again"
            )
        file.flush()
        os.fsync(file.fileno())  # the name must not appear before the bytes
        os.replace(part, target)


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file, of the kind of a given one."""
    with open(path, "rb") as file:
        return _checksum(file, like)


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The partial file, for this process alone; the kernel gives it back if the process dies."""
    with open(part, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _complete(
    blob: Blob,
    file: BinaryIO,
    headers: dict[str, str],
    told: Told,
    pause: Callable[[float], None],
) -> None:
    """Append what is missing, over as many connections as it takes."""
    failed = 0
    while (have := file.seek(0, os.SEEK_END)) != blob.num_bytes:
        if have > blob.num_bytes:
            file.truncate(0)
            have = 0
        try:
            _append(blob, file, have, headers, told)
        except _Interrupted as error:
            failed = 0 if file.seek(0, os.SEEK_END) > have else failed + 1
            if failed >= TRIES:
                raise StartError(
                    f"fetching {blob.name} from {blob.url} failed {TRIES} times in a row: "
                    f"{error}; what is here is kept, the same command goes on from there"
                ) from None
            pause(FIRST_PAUSE_S * 2**failed)
    told(blob.num_bytes)


def _append(blob: Blob, file: BinaryIO, have: int, headers: dict[str, str], told: Told) -> None:
    # Bytes as they are stored: of a compressed answer, positions would mean something else.
    asked = headers | {"Accept-Encoding": "identity"}
    if have:
        asked["Range"] = f"bytes={have}-"
    try:
        with get_session().stream(
            "GET", blob.url, headers=asked, follow_redirects=True, timeout=TIMEOUT_S
        ) as answer:
            _refuse(answer)
            if answer.status_code == UNSATISFIABLE or (have and not _goes_on(answer, have)):
                file.truncate(0)
                have = 0
            if answer.status_code == UNSATISFIABLE:
                raise _Interrupted("the server has no such range")
            _write(blob, file, have, answer, told)
    except httpx2.TransportError as error:
        raise _Interrupted(str(error) or type(error).__name__) from None


def _refuse(answer: httpx2.Response) -> None:
    if answer.status_code in BUSY:
        raise _Interrupted(f"status {answer.status_code}")
    if answer.status_code != UNSATISFIABLE:
        hf_raise_for_status(answer)


def _goes_on(answer: httpx2.Response, have: int) -> bool:
    begins = f"bytes {have}-"
    return answer.status_code == PARTIAL and answer.headers.get("Content-Range", "").startswith(
        begins
    )


def _write(blob: Blob, file: BinaryIO, have: int, answer: httpx2.Response, told: Told) -> None:
    for chunk in answer.iter_bytes(CHUNK_BYTES):
        if have + len(chunk) > blob.num_bytes:
            raise StartError(
                f"{blob.name} from {blob.url} is longer than the {blob.num_bytes} bytes that the "
                "hub states; check HF_ENDPOINT and proxies"
            )
        file.write(chunk)
        have += len(chunk)
        told(have)
    if have < blob.num_bytes:
        raise _Interrupted(f"the answer ended {blob.num_bytes - have} bytes early")


def _is_right(blob: Blob, file: BinaryIO) -> bool:
    file.flush()
    file.seek(0)
    return _checksum(file, blob.checksum) == blob.checksum


def _checksum(file: BinaryIO, like: str) -> str:
    if len(like) == SHA256_DIGITS:
        digest = hashlib.sha256()
    else:  # git's name of a file
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(b"blob %d\0" % os.fstat(file.fileno()).st_size)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
