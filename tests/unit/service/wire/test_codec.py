from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.errors import BadFrame
from headway.core.base.units import Seconds
from headway.core.messages.health import (
    Heartbeat,
    LoadProgress,
    ReplicaFailed,
    Report,
    StepReport,
)
from headway.core.messages.path import (
    Cancel,
    Command,
    EngineRequest,
    Finished,
    FinishReason,
    Sampling,
    Started,
    Stop,
    Submit,
    TokenLogprob,
    Tokens,
    Usage,
)
from headway.service.wire import codec
from headway.service.wire.codec import decode_command, decode_report, encode
from tests.fault.scripted import ScriptedEngine, hello

STATUS = ScriptedEngine().status()
SCORED = TokenLogprob(token_id=5, logprob=-0.5, top=((5, -0.5), (6, -1.5)))
FULL_REQUEST = EngineRequest(
    id="r1",
    prompt=(1, 2, 3),
    sampling=Sampling(
        max_tokens=9, seed=2**64 - 1, logit_bias=((3, -100.0),), stop=("停", "\n"), num_logprobs=2
    ),
    num_choices=2,
    cache_salt=b"\x00\xff",
)
COMMANDS: list[Command] = [Submit(request=FULL_REQUEST), Cancel(request_id="r1"), Stop()]
REPORTS: list[Report] = [
    hello(17),
    ReplicaFailed(message="no"),
    Heartbeat(at=Seconds(1.5), num_steps=3, since_progress_s=0.25),
    LoadProgress(stage="weights", done=1, total=2),
    StepReport(
        events=(
            Started(request_id="r1", at=Seconds(1.0), cached_tokens=0),
            Tokens(
                request_id="r1",
                choice=1,
                token_ids=(5,),
                text="é",
                at=Seconds(2.0),
                logprobs=(SCORED,),
                prompt_logprobs=(None, SCORED),
                finish_reason=FinishReason.STOP,
                stop_reason="停",
            ),
            Finished(
                request_id="r1",
                reason=FinishReason.STOP,
                usage=Usage(prompt_tokens=3, completion_tokens=1),
            ),
        ),
        status=STATUS,
        step_s=0.02,
    ),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_a_command_comes_out_as_it_went_in(command: Command) -> None:
    assert decode_command(encode(command)) == command


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: type(r).__name__)
def test_a_report_comes_out_as_it_went_in(report: Report) -> None:
    assert decode_report(encode(report)) == report


def test_an_unknown_version_is_refused_by_number() -> None:
    frame = bytes((codec.VERSION + 1,)) + encode(Stop())[1:]
    with pytest.raises(BadFrame, match=r"version 2, this side speaks version 1"):
        decode_command(frame)


def test_a_message_of_the_other_direction_is_no_message() -> None:
    with pytest.raises(BadFrame):
        decode_command(encode(ReplicaFailed(message="no")))
    with pytest.raises(BadFrame):
        decode_report(encode(Stop()))


def test_fields_that_this_version_does_not_know_are_ignored() -> None:
    newer = bytes((codec.VERSION,)) + codec._encoder.encode(
        {"type": "cancel", "request_id": "r1", "why": "the reader left"}
    )
    assert decode_command(newer) == Cancel(request_id="r1")


def test_a_frame_over_the_limit_is_refused_by_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(Submit(request=FULL_REQUEST))
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", len(frame) - 1)
    with pytest.raises(BadFrame, match="over the limit"):
        encode(Submit(request=FULL_REQUEST))
    with pytest.raises(BadFrame, match="over the limit"):
        decode_command(frame)


def test_deep_nesting_is_a_bad_frame_and_not_a_crash() -> None:
    with pytest.raises(BadFrame):
        decode_command(bytes((codec.VERSION,)) + b"\x91" * 100_000)


def test_the_error_quotes_nothing_of_the_frame() -> None:
    broken = encode(Submit(request=FULL_REQUEST)).replace(b"r1", b"\xff\xff")
    with pytest.raises(BadFrame) as caught:
        decode_command(broken)
    assert "停" not in caught.value.message
    assert caught.value.message == f"a frame of {len(broken)} bytes that is no message"


MESSAGES = {type(message).__name__ for message in (*COMMANDS, *REPORTS)}


def outcome(decode: Callable[[bytes], Command | Report], frame: bytes) -> str:
    """Name of what a frame gives."""
    try:
        return type(decode(frame)).__name__
    except BadFrame:
        return "BadFrame"


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_bad_frame(noise: bytes) -> None:
    for frame in (noise, bytes((codec.VERSION,)) + noise):
        assert outcome(decode_command, frame) in MESSAGES | {"BadFrame"}
        assert outcome(decode_report, frame) in MESSAGES | {"BadFrame"}


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_frame_gives_a_message_or_a_bad_frame(where: int, byte: int) -> None:
    frame = bytearray(encode(REPORTS[-1]))
    frame[where % len(frame)] = byte
    assert outcome(decode_report, bytes(frame)) in {"StepReport", "BadFrame"}
