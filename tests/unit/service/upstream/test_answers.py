"""An upstream's answer as the gateway's own."""

import json
from typing import Any

import pytest

from headway.core.base.errors import InvalidRequest, UpstreamBroken, UpstreamError
from headway.core.messages.path import FinishReason, Usage
from headway.service.upstream.answers import Shown, StreamedAnswer, usage_of, whole_answer
from headway.service.upstream.likeness import Gain
from tests.upstreams import answer, chunk, events_of, usage_chunk


def streamed(**shown: Any) -> StreamedAnswer:
    given = {"id": "chatcmpl-ours", "model": "m", "include_usage": False, "num_choices": 1}
    return StreamedAnswer(Shown(**{**given, **shown}), 11)


def taken(of: StreamedAnswer, *datas: Any) -> tuple[list[Any], int]:
    """Events for the client, and the tokens that were counted."""
    out, gains = b"", list[Gain]()
    for data in datas:
        out += of.take(data if isinstance(data, bytes) else json.dumps(data).encode(), gains)
    return events_of(out.decode()), sum(each.num_tokens for each in gains)


def test_id_and_model_are_ours_and_the_rest_is_as_it_came() -> None:
    events, count = taken(streamed(), chunk("Hi", service_tier="x", extra={"a": 1}))
    assert events == [
        {**chunk("Hi", service_tier="x", extra={"a": 1}), "id": "chatcmpl-ours", "model": "m"}
    ]
    assert count == 1


def test_usage_is_hidden_from_who_did_not_ask_and_counted_all_the_same() -> None:
    of = streamed()
    events, _ = taken(of, chunk("Hi", usage=None), chunk(finish="stop"), usage_chunk(), b"[DONE]")
    assert [each for each in events if "usage" in each] == []
    out, ended = of.last(5)
    assert out == b"data: [DONE]\n\n"
    assert ended.usage == Usage(prompt_tokens=7, completion_tokens=3)
    assert ended.reason is FinishReason.STOP


def test_usage_is_told_once_to_who_asked_and_comes_last() -> None:
    of = streamed(include_usage=True)
    taken(of, chunk("Hi"), chunk(finish="length"), usage_chunk(), b"[DONE]")
    out, ended = of.last(5)
    events = events_of(out.decode())
    assert events[-1] == "[DONE]"
    assert events[0]["usage"]["total_tokens"] == 10
    assert events[0]["choices"] == []
    assert "is_estimated" not in events[0]["usage"]
    assert ended.reason is FinishReason.LENGTH


def test_without_usage_of_the_upstream_tokens_are_counted_by_chunks_and_say_so() -> None:
    of = streamed(include_usage=True)
    taken(of, chunk(""), chunk("a"), chunk("b"), chunk(finish="stop"))
    out, ended = of.last(5)
    assert ended.usage == Usage(prompt_tokens=11, completion_tokens=2, is_estimated=True)
    assert events_of(out.decode())[0]["usage"]["is_estimated"] is True


def test_usage_beside_the_finish_reason_counts_too() -> None:
    of = streamed()
    taken(of, chunk("a"), {**chunk(finish="stop"), "usage": usage_chunk()["usage"]})
    assert of.last(5)[1].usage.prompt_tokens == 7


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": "a"}, "logprobs": {"content": [{}, {}]}},
        {"delta": {"content": "a"}, "token_ids": [1, 2]},
    ],
)
def test_a_chunk_that_lists_its_tokens_counts_them(choice: dict[str, Any]) -> None:
    _, count = taken(streamed(), {**chunk(), "choices": [{"index": 0, **choice}]})
    assert count == 2


def test_a_tool_call_or_a_thought_is_an_answer_too() -> None:
    call = {"index": 0, "delta": {"tool_calls": [{"index": 0}]}}
    thought = {"index": 0, "delta": {"reasoning_content": "hm"}}
    _, count = taken(streamed(), *({**chunk(), "choices": [each]} for each in (call, thought)))
    assert count == 2


def test_every_choice_has_to_end() -> None:
    of = streamed(num_choices=2)
    taken(of, chunk("a"), chunk(finish="stop"), b"[DONE]")
    assert of.is_done
    assert not of.is_complete
    with pytest.raises(UpstreamBroken, match="before its answer was complete"):
        of.last(5)


def test_the_native_events_carry_text_and_end_alone() -> None:
    of = streamed(is_native=True)
    events, _ = taken(of, chunk(""), chunk("a"), chunk("b"), chunk(finish="stop"), usage_chunk())
    assert events == [
        {"token": "a", "index": 0, "finish_reason": None},
        {"token": "b", "index": 1, "finish_reason": None},
        {"token": "", "index": 2, "finish_reason": "stop"},
    ]
    assert of.last(5)[0] == b"data: [DONE]\n\n"


def test_an_error_event_ends_the_answer_without_its_details() -> None:
    told = {"error": {"message": "CUDA error at 10.0.0.1:8000", "code": 500}}
    with pytest.raises(UpstreamError, match="failed while it answered") as raised:
        taken(streamed(), told)
    assert "10.0.0.1" not in raised.value.message


def test_an_error_event_that_is_the_requests_own_fault_says_so() -> None:
    with pytest.raises(InvalidRequest, match="too deep"):
        taken(streamed(), {"error": {"message": "too deep", "code": 400}})


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"3"])
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(UpstreamBroken, match="no JSON"):
        streamed().take(data, [])


def test_a_whole_answer_is_ours_by_id_and_model() -> None:
    shown = Shown("chatcmpl-ours", "m", include_usage=False, num_choices=1)
    out, ended = whole_answer(json.dumps(answer("Hi", extra=1)).encode(), shown, unused)
    told = json.loads(out)
    assert told == {**answer("Hi", extra=1), "id": "chatcmpl-ours", "model": "m"}
    assert ended.usage.completion_tokens == 3


def test_a_whole_answer_without_usage_gets_an_estimate() -> None:
    shown = Shown("chatcmpl-ours", "m", include_usage=False, num_choices=1)
    without = {key: value for key, value in answer().items() if key != "usage"}

    def estimate(text_bytes: int) -> Usage:
        return Usage(prompt_tokens=1, completion_tokens=text_bytes, is_estimated=True)

    out, ended = whole_answer(json.dumps(without).encode(), shown, estimate)
    assert ended.usage.is_estimated
    assert json.loads(out)["usage"]["is_estimated"] is True


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"choices":[]}', b'{"choices":3}'])
def test_a_body_without_an_answer_is_refused(body: bytes) -> None:
    shown = Shown("chatcmpl-ours", "m", include_usage=False, num_choices=1)
    with pytest.raises(UpstreamBroken):
        whole_answer(body, shown, unused)


@pytest.mark.parametrize("told", [None, 3, {}, {"prompt_tokens": -1}, {"prompt_tokens": "7"}])
def test_usage_that_makes_no_sense_is_none(told: object) -> None:
    assert usage_of(told) is None


def test_cached_tokens_are_never_more_than_the_prompt() -> None:
    told = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}
    assert usage_of(told) == Usage(prompt_tokens=5, completion_tokens=0, cached_tokens=5)


def unused(_: int) -> Usage:
    raise AssertionError("nothing was to be estimated")
