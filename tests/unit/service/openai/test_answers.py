from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from headway.core.base.errors import QueueFull, ReplicaLost
from headway.core.base.units import Seconds
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Started,
    Tokens,
    Usage,
)
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.resolve import engine_requests
from headway.service.openai.responses import (
    Answer,
    chat_answer,
    completion_answer,
    native_answer,
)
from headway.service.openai.schema import ChatRequest
from tests.fakes import EOS, ByteTokenizer
from tests.unit.service.openai.script import (
    FACTS,
    HEAD,
    TOKENIZER,
    body,
    chat_body,
    chunks_of,
    events_of,
    merge,
    strict,
)

pytestmark = pytest.mark.spec("A6")

LIMITS = ApiLimits()
EMOJI = list("😀".encode())


PROMPT = [72, 105]


def chat_events(
    fields: dict[str, Any], outputs: list[list[int]]
) -> tuple[ChatRequest, list[Event]]:
    request = parse_chat(chat_body(**fields), LIMITS)
    return request, events_of(made_of(request)[0], outputs)


def made_of(request: ChatRequest) -> Sequence[EngineRequest]:
    return engine_requests(request, [PROMPT], FACTS, "r", 0)


def chat_of(request: ChatRequest) -> Answer:
    return chat_answer(HEAD, request, made_of(request), TOKENIZER)


def whole(answer: Answer, events: list[Event]) -> Any:
    for event in events:
        answer.feed(event)
    assert answer.is_done
    return strict(answer.response())


def streamed(answer: Answer, events: list[Event]) -> bytes:
    return b"".join(answer.stream(event) for event in events)


def chat_both(fields: dict[str, Any], outputs: list[list[int]]) -> tuple[Any, list[Any]]:
    """The same answer, whole and as chunks."""
    request, events = chat_events(fields, outputs)
    body_ = whole(chat_of(request), events)
    return body_, chunks_of(streamed(chat_of(request), events))


def completion_both(
    fields: dict[str, Any], outputs: list[list[list[int]]]
) -> tuple[Any, list[Any]]:
    request = parse_completion(body(**fields), LIMITS)
    ids = [list(p.encode()) if isinstance(p, str) else list(p) for p in request.prompts]
    made = engine_requests(request, ids, FACTS, "r", 0)
    events = [events_of(each, out) for each, out in zip(made, outputs, strict=True)]
    one = completion_answer(HEAD, request, made, TOKENIZER)
    other = completion_answer(HEAD, request, made, TOKENIZER)
    stream = b""
    for prompt, several in enumerate(events):
        for event in several:
            one.feed(event, prompt)
            stream += other.stream(event, prompt)
    return strict(one.response()), chunks_of(stream)


def joined(chunks: list[Any], index: int) -> tuple[str, list[Any], list[str]]:
    """Text, log-probabilities and finish reasons of one choice of a chat stream."""
    mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    text = "".join(c["delta"].get("content", "") for c in mine)
    entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
    return text, entries, [c["finish_reason"] for c in mine if c["finish_reason"]]


def test_a_stream_is_role_then_content_then_finish() -> None:
    _, chunks = chat_both({}, [list(b"Hey")])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d.get("content") for d in deltas[1:-1]] == ["H", "e", "y"]
    assert deltas[-1] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 4 + ["stop"]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in c for c in chunks)


def test_a_whole_answer_has_the_shape_that_clients_read() -> None:
    answer, _ = chat_both({"max_tokens": 2}, [list(b"Hey")])
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "He", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_openais_own_types_read_the_answers() -> None:
    answer, chunks = chat_both({"logprobs": True, "max_tokens": 3}, [list(b"Hey")])
    read = ChatCompletion.model_validate(answer, strict=True)
    assert read.choices[0].message.content == "Hey"
    parts = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "Hey"
    answer, _ = completion_both({"prompt": "Hi", "logprobs": 1, "max_tokens": 3}, [[list(b"Hey")]])
    assert Completion.model_validate(answer, strict=True).choices[0].text == "Hey"


def test_usage_01_usage_is_the_same_streamed_or_not_and_counts_a_prompt_once() -> None:
    fields = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
    answer, chunks = chat_both(fields, [list(b"one"), list(b"three")])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 3 + 5 + 2  # with both ends
    assert answer["usage"]["total_tokens"] == 12
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_usage_03_four_choices_in_prompt_order_each_with_its_own_finish() -> None:
    fields = {"prompt": ["Hi", "The capital"], "n": 2, "max_tokens": 6, "stop": ["."]}
    outputs = [[list(b"abcdefgh"), list(b"a.b")], [list(b"ab"), list(b"abcdef")]]
    answer, chunks = completion_both(fields, outputs)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["abcdef", "a", "ab", "abcdef"]
    wanted = ["length", "stop", "stop", "length"]
    assert [c["finish_reason"] for c in answer["choices"]] == wanted
    ends = {
        c["index"]: c["finish_reason"] for k in chunks for c in k["choices"] if c["finish_reason"]
    }
    assert ends == dict(enumerate(wanted))
    assert sum(c["finish_reason"] is not None for k in chunks for c in k["choices"]) == 4


def test_logprobs_02_one_entry_a_token_with_no_candidates_unless_asked() -> None:
    answer, _ = chat_both({"logprobs": True, "max_tokens": 2}, [list(b"Hey")])
    content = answer["choices"][0]["logprobs"]["content"]
    assert [(e["token"], e["bytes"], e["top_logprobs"]) for e in content] == [
        ("H", [72], []),
        ("e", [101], []),
    ]


def test_logprobs_02_half_characters_have_their_bytes_and_a_token_that_is_text() -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 2}
    answer, chunks = chat_both(fields, [EMOJI])
    content = answer["choices"][0]["logprobs"]["content"]
    assert [e["bytes"] for e in content] == [[0xF0], [0x9F]]
    assert [e["token"] for e in content] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert answer["choices"][0]["message"]["content"] == "\ufffd"
    assert content[0]["top_logprobs"][0]["token"] == "bytes:\\xf0"
    assert joined(chunks, 0)[1] == content


def test_logprobs_01_minus_infinity_is_written_as_the_floor() -> None:
    request = parse_chat(chat_body(logprobs=True, top_logprobs=1, max_tokens=1), LIMITS)
    made = engine_requests(request, [[1]], FACTS, "r", 0)
    events = events_of(made[0], [[65]])
    for value in (float("-inf"), float("nan")):
        scored = events[0].logprobs[0]  # type: ignore[union-attr]  # the first is Tokens
        bad = type(scored)(65, value, ((65, value),))
        changed = Tokens(
            request_id="r",
            choice=0,
            token_ids=(65,),
            text="A",
            at=Seconds(0.0),
            logprobs=(bad,),
            finish_reason=FinishReason.LENGTH,
        )
        answer = whole(chat_of(request), [changed, events[-1]])
        entry = answer["choices"][0]["logprobs"]["content"][0]
        assert entry["logprob"] == -9999.0
        assert entry["top_logprobs"][0]["logprob"] == -9999.0


def test_logprobs_01_an_echoed_prompt_is_scored_from_its_second_token() -> None:
    fields = {"prompt": "lamp", "echo": True, "logprobs": 1, "max_tokens": 2}
    answer, chunks = completion_both(fields, [[list(b"XY")]])
    choice = answer["choices"][0]
    assert choice["text"] == "lampXY"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list("lampXY")
    assert logprobs["token_logprobs"][0] is None
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"a": -0.97}
    parts = [c for chunk in chunks for c in chunk["choices"]]
    assert "".join(c["text"] for c in parts) == "lampXY"
    assert parts[0]["text"] == "lampX"
    assert [t for c in parts if c["logprobs"] for t in c["logprobs"]["tokens"]] == list("lampXY")


def test_odd_prompts_bounds_04_scoring_gives_the_prompt_and_no_completion() -> None:
    fields = {"prompt": "Is ice cold? Yes", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer, chunks = completion_both(fields, [[list(b"Z")]])
    choice = answer["choices"][0]
    assert choice["text"] == "Is ice cold? Yes"
    assert len(choice["logprobs"]["tokens"]) == 16
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert "".join(c["text"] for k in chunks for c in k["choices"]) == "Is ice cold? Yes"


def test_an_echo_of_ids_is_their_text() -> None:
    answer, _ = completion_both({"prompt": [72, 105], "echo": True, "max_tokens": 1}, [[[33]]])
    assert answer["choices"][0]["text"] == "Hi!"


def test_stop_strings_01_text_and_bytes_end_before_the_stop() -> None:
    fields = {"logprobs": True, "stop": ["lo wo"]}
    answer, chunks = chat_both(fields, [list(b"hello world")])
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "hel"
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "lo wo"
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in content) == b"hel"
    assert len(content) == answer["usage"]["completion_tokens"]
    assert joined(chunks, 0) == ("hel", content, ["stop"])


def test_stop_strings_02_no_chunk_is_empty_but_role_and_finish() -> None:
    fields = {"logprobs": True, "stop": ["xyz"], "max_tokens": 10}
    _, chunks = chat_both(fields, [[*b"axy", *EMOJI, *b"x"]])
    inner = [c["choices"][0]["delta"] for c in chunks][1:-1]
    assert all(delta["content"] for delta in inner)


@given(
    outputs=st.lists(
        st.lists(st.sampled_from([*b"abc", *EMOJI, 0xFF, EOS]), max_size=12), min_size=2, max_size=2
    ),
    stop=st.lists(st.text("abc😀", min_size=1, max_size=3), max_size=2),
    flags=st.fixed_dictionaries(
        {
            "include_stop_str_in_output": st.booleans(),
            "skip_special_tokens": st.booleans(),
            "ignore_eos": st.booleans(),
            "max_tokens": st.integers(1, 12),
        }
    ),
    cuts=st.lists(st.booleans(), max_size=30),
)
def test_a_stream_joined_equals_the_whole_answer(
    outputs: list[list[int]], stop: list[str], flags: dict[str, Any], cuts: list[bool]
) -> None:
    fields = {"n": 2, "stop": stop, "logprobs": True, "top_logprobs": 1, **flags}
    padded = [[*ids, *b"abcabcabcabc"] for ids in outputs]  # never shorter than max_tokens
    request, events = chat_events(fields, padded)
    answer = whole(chat_of(request), events)
    merged = merge(events, cuts)
    chunks = chunks_of(streamed(chat_of(request), merged))
    num_entries = 0
    for choice in answer["choices"]:
        text, entries, ends = joined(chunks, choice["index"])
        assert text == choice["message"]["content"]
        assert entries == choice["logprobs"]["content"]
        assert ends == [choice["finish_reason"]]
        num_entries += len(entries)
        raw = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert raw.decode("utf-8", "replace") == text
    assert num_entries == answer["usage"]["completion_tokens"]


def test_the_briefs_native_events_count_from_0_and_end_with_the_reason() -> None:
    request = parse_native(chat_body(max_tokens=4), {}, LIMITS)
    made = engine_requests(request, [[1]], FACTS, "r", 0)
    events = events_of(made[0], [[*"你".encode(), 33]])
    stream = streamed(native_answer(HEAD, request, made, TOKENIZER), events)
    assert (
        stream
        == (
            'data: {"token":"你","index":0,"finish_reason":null}\n\n'
            'data: {"token":"!","index":1,"finish_reason":"length"}\n\n'
            "data: [DONE]\n\n"
        ).encode()
    )


def finished(reason: FinishReason, **fields: Any) -> Finished:
    usage = Usage(prompt_tokens=1, completion_tokens=0)
    return Finished(request_id="r", reason=reason, usage=usage, **fields)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (finished(FinishReason.ERROR, error="gone", error_code="engine_lost"), "engine_lost"),
        (finished(FinishReason.ERROR), "internal_error"),
        (finished(FinishReason.CANCELLED), "internal_error"),
        (finished(FinishReason.STOP), "internal_error"),  # without an end of its choice
    ],
)
def test_a_stream_that_fails_ends_with_one_error_event_and_no_done(
    end: Finished, code: str
) -> None:
    request, events = chat_events({}, [list(b"Hey")])
    answer = chat_of(request)
    streamed(answer, events[:2])
    last = answer.stream(end)
    assert answer.is_done
    assert strict(last.removeprefix(b"data: "))["error"]["code"] == code
    assert b"[DONE]" not in last


def test_a_whole_answer_that_fails_raises_the_engines_error() -> None:
    request, _ = chat_events({}, [[65]])
    for code, kind in (("engine_lost", ReplicaLost), ("queue_full", QueueFull)):
        answer = chat_of(request)
        answer.feed(finished(FinishReason.ERROR, error="gone", error_code=code))
        with pytest.raises(kind, match="gone"):
            answer.response()


def test_nothing_is_sent_before_the_first_token() -> None:
    request, _ = chat_events({}, [[65]])
    started = Started(request_id="r", at=Seconds(0.0), cached_tokens=0)
    assert chat_of(request).stream(started) == b""


def test_a_start_token_put_first_by_the_models_rule_is_not_part_of_the_echo() -> None:
    request = parse_completion(body(prompt="Hi", echo=True, logprobs=0, max_tokens=1), LIMITS)
    made = [
        EngineRequest(id="r", prompt=(EOS, 72, 105), sampling=each.sampling)
        for each in engine_requests(request, [[72, 105]], FACTS, "r", 0)
    ]
    answer = whole(completion_answer(HEAD, request, made, TOKENIZER), events_of(made[0], [[33]]))
    assert answer["choices"][0]["text"] == "Hi!"
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_an_echoed_prompt_is_worked_out_once_a_choice_not_once_a_token() -> None:
    class Counting(ByteTokenizer):
        num_asked = 0

        def token_bytes(self, token_id: int) -> bytes:
            type(self).num_asked += token_id == ord("P")
            return super().token_bytes(token_id)

    request = parse_completion(body(prompt="P", echo=True, logprobs=0, max_tokens=20), LIMITS)
    made = engine_requests(request, [b"P"], FACTS, "r", 0)
    answer = completion_answer(HEAD, request, made, Counting())
    for event in events_of(made[0], [list(b"x" * 20)]):
        answer.feed(event)
    assert answer.is_done
    assert Counting.num_asked == 1
