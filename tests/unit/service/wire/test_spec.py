import os

import msgspec
import pytest

from headway.core.base.errors import BadFrame
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from headway.core.engine.settings import EngineSettings
from headway.service.wire.spec import Launch, encode_launch, read_launch
from tests.fault.scripted import SPEC

SCALED = msgspec.structs.replace(
    SPEC.card, rope_scaling=RopeScaling(kind=RopeScalingKind.LLAMA3, factor=8.0)
)
LAUNCH = Launch(
    spec=msgspec.structs.replace(
        SPEC, card=SCALED, engine=EngineSettings(max_model_len="auto"), threads=2
    ),
    commands_address="ipc:///tmp/c",
    reports_address="ipc:///tmp/r",
)


def piped(data: bytes) -> int:
    """A descriptor that gives `data` and then ends; small enough for a pipe's buffer."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def read(data: bytes) -> Launch:
    fd = piped(data)
    try:
        return read_launch(fd)
    finally:
        os.close(fd)


def test_a_launch_comes_out_as_it_went_in() -> None:
    assert read(encode_launch(LAUNCH)) == LAUNCH


def test_not_a_byte_more_is_read_than_the_launch_has() -> None:
    fd = piped(encode_launch(LAUNCH) + b"next")
    try:
        read_launch(fd)
        assert os.read(fd, 100) == b"next"
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ended 4 bytes early"),
        (encode_launch(LAUNCH)[:-1], "ended 1 bytes early"),
        (b"\x00\x00\x00\x00", "a launch of 0 bytes"),
        (b"\xff\xff\xff\xff", "a launch of 4294967295 bytes"),
        (b"\x00\x00\x00\x02\x09\x80", "version 9"),
        (b"\x00\x00\x00\x02\x01\x80", "cannot be read: Object missing required field `spec`"),
        (b"\x00\x00\x00\x05hello", "version 104"),
    ],
)
def test_what_is_no_launch_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(BadFrame, match=problem):
        read(data)
