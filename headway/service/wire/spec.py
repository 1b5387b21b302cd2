"""What a new replica process is told, over its standard input."""

import os

import msgspec

from headway.core.base.errors import BadFrame
from headway.core.base.model_card import ModelCard
from headway.core.engine.settings import EngineSettings
from headway.core.fleet.budget import DeviceShare
from headway.service.wire.codec import MAX_FRAME_BYTES, VERSION

LENGTH_BYTES = 4


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which model a replica serves and how; the same for every restart of it.

    dtype, device, threads, attention, cpu_isa, quantization and kv_cache_dtype are compute's
    settings, carried as plain values because service does not import compute.
    """

    model_path: str
    card: ModelCard
    engine: EngineSettings
    executor: str = "auto"  # "cpu", "torch", or auto: the one that fits
    cache_dir: str | None = None  # for compiled kernels; None: the user's cache folder
    dtype: str = "auto"
    device: str = "cpu"
    threads: int | None = None  # None: the executor decides
    attention: str = "sdpa"
    cpu_isa: str = "auto"
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"
    depth: int = 0  # steps in flight beside the one being committed, 0 or 1
    check_when_idle: bool = False  # run the engine's own consistency check: for debugging
    device_share: DeviceShare = DeviceShare()  # what it leaves to other engines on its accelerator
    replica: str = ""  # which of its pool's replicas it is, for the log; "" for the only one
    log_level: str = "info"
    log_json: bool = False


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a replica: what to run, and the two sockets to connect to."""

    spec: ReplicaSpec
    commands_address: str  # ipc://...: the server sends, the replica receives
    reports_address: str  # ipc://...: the replica sends, the server receives
    heartbeat_s: float = 1.0


def encode_launch(launch: Launch) -> bytes:
    """Length (4 bytes, big endian), version byte, msgpack."""
    body = bytes((VERSION,)) + msgspec.msgpack.encode(launch)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_launch(fd: int) -> Launch:
    """Read one launch from a file descriptor, and not a byte more; raises BadFrame."""
    length = int.from_bytes(_read_exactly(fd, LENGTH_BYTES), "big")
    if not 1 <= length <= MAX_FRAME_BYTES:
        raise BadFrame(f"a launch of {length} bytes")
    body = _read_exactly(fd, length)
    if body[0] != VERSION:
        raise BadFrame(f"a launch of version {body[0]}, this side speaks version {VERSION}")
    try:
        return msgspec.msgpack.decode(memoryview(body)[1:], type=Launch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a launch of {length} bytes that cannot be read: {error}") from error


def _read_exactly(fd: int, length: int) -> bytes:
    parts: list[bytes] = []
    missing = length
    while missing:
        part = os.read(fd, min(missing, 65536))
        if not part:
            raise BadFrame(f"the launch ended {missing} bytes early")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
