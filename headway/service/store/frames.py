"""Frames of an append-only file: length, checksum, payload; what is torn or damaged is found.

A frame is `HWL1`, the payload's length and its CRC-32 (little endian, 4 bytes each), and the
payload. A reader that meets something else looks for the next frame that is whole.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"HWL1"
HEAD = struct.Struct("<4sII")
MAX_PAYLOAD = 64 * 1024


class Found(NamedTuple):
    """What a file's bytes hold."""

    payload: bytes | None  # None: what stood here could not be read
    end: int  # offset behind it


def frame(payload: bytes) -> bytes:
    """The payload as it is written."""
    assert len(payload) <= MAX_PAYLOAD, f"a payload of {len(payload)} bytes"
    return HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def frames(data: bytes, start: int = 0) -> Iterator[Found]:
    """All frames from `start` on, and one Found without payload for each damaged stretch.

    What is cut off at the end, as a killed writer leaves it, is neither.
    """
    at = start
    while at < len(data):
        payload = _payload(data, at)
        if payload is not None:
            at += HEAD.size + len(payload)
            yield Found(payload, at)
            continue
        after = _next(data, at + 1)
        if after is None:
            if not _is_torn(data, at):
                yield Found(None, len(data))
            return
        yield Found(None, after)
        at = after


def _payload(data: bytes, at: int) -> bytes | None:
    """Of the frame that begins here; None if none does, or it is not whole."""
    if at + HEAD.size > len(data):
        return None
    magic, length, checksum = HEAD.unpack_from(data, at)
    begin = at + HEAD.size
    if magic != MAGIC or length > MAX_PAYLOAD or begin + length > len(data):
        return None
    payload = data[begin : begin + length]
    return payload if zlib.crc32(payload) == checksum else None


def _next(data: bytes, at: int) -> int | None:
    """Offset of the next whole frame."""
    while (at := data.find(MAGIC, at)) >= 0:
        if _payload(data, at) is not None:
            return at
        at += 1
    return None


def _is_torn(data: bytes, at: int) -> bool:
    """Whether what stands here, the last of the file, is the beginning of a frame."""
    left = len(data) - at
    if left < HEAD.size:
        return MAGIC.startswith(data[at : at + 4][: len(MAGIC)])
    magic, length, _ = HEAD.unpack_from(data, at)
    return bool(magic == MAGIC and length <= MAX_PAYLOAD and left < HEAD.size + length)
