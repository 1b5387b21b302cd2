"""Frames between a server and its replica: a version byte, then msgpack.

Only the structs of `core.messages` come out of `decode_*`: nothing that arrives can name a
class or run code. Anything else is a BadFrame, which the receiver logs and drops.
"""

from typing import TypeVar

import msgspec

from headway.core.base.errors import BadFrame
from headway.core.messages.health import Report
from headway.core.messages.path import Command

VERSION = 1
# Room for a 128 K token prompt with 20 scored candidates a token (about 36 MiB).
MAX_FRAME_BYTES = 64 * 1024 * 1024

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def encode(message: Command | Report) -> bytes:
    """The message as one frame; raises BadFrame when it is over MAX_FRAME_BYTES."""
    frame = bytes((VERSION,)) + _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise BadFrame(
            f"a {type(message).__name__} of {len(frame)} bytes is over the limit of "
            f"{MAX_FRAME_BYTES} bytes a frame"
        )
    return frame


def decode_command(frame: bytes) -> Command:
    """What a server sent to its replica; raises BadFrame."""
    return _decode(_commands, frame)


def decode_report(frame: bytes) -> Report:
    """What a replica sent to its server; raises BadFrame."""
    return _decode(_reports, frame)


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes) -> T:
    if not frame:
        raise BadFrame("an empty frame")
    if len(frame) > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {len(frame)} bytes, over the limit of {MAX_FRAME_BYTES}")
    if frame[0] != VERSION:
        raise BadFrame(f"a frame of version {frame[0]}, this side speaks version {VERSION}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The library's own message may quote the frame, and with it a client's text.
        raise BadFrame(f"a frame of {len(frame)} bytes that is no message") from error
