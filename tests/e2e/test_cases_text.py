"""Users' failures around text: detokenizing, stops, usage, logprobs, templates."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.server import PROBE, Server, finish_reasons, strict_json, text_of, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER_HI = [{"role": "user", "content": "Hi"}]
HALF = {"10813": 100}  # forces the token F0 9F: half of most emoji
DAYS = "Monday, Tuesday, Wednesday,"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_utf8_detok_01_a_limit_inside_a_character(server: Server, length: int) -> None:
    plain = server.complete("Hi", max_tokens=length, logit_bias=HALF)
    assert set(plain["choices"][0]["text"]) <= {"\ufffd"}
    assert plain["choices"][0]["finish_reason"] == "length"
    assert plain["usage"]["completion_tokens"] == length
    events = server.stream(COMPLETIONS, prompt="Hi", max_tokens=length, logit_bias=HALF)
    assert text_of(events) == plain["choices"][0]["text"]
    chat = server.chat(max_tokens=length, logit_bias=HALF)
    streamed = server.stream(CHAT, messages=USER_HI, max_tokens=length, logit_bias=HALF)
    assert text_of(streamed) == chat["choices"][0]["message"]["content"]


@pytest.mark.spec("A6")
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_stop_strings_01_a_stop_that_does_not_align_with_tokens(server: Server, path: str) -> None:
    ask = {"prompt": DAYS} if path == COMPLETIONS else {"messages": USER_HI}
    whole = text_of(server.stream(path, max_tokens=40, **ask))
    words = whole.split(" ")
    assert len(words) > 4
    stop = whole[len(words[0]) + len(words[1]) - 1 :][: len(words[2]) + 5]
    expected = whole[: whole.index(stop)]
    for form in (stop, [stop, "never-there"]):
        events = server.stream(
            path, max_tokens=40, stop=form, stream_options={"include_usage": True}, **ask
        )
        assert text_of(events) == expected
        assert finish_reasons(events) == {0: ["stop"]}
        plain = server.post(path, {"max_tokens": 40, "temperature": 0, "stop": form, **ask}).json()
        choice = plain["choices"][0]
        assert (choice.get("text") or choice["message"]["content"]) == expected
        assert plain["usage"] == events[-1]["usage"]
        assert plain["usage"]["completion_tokens"] < 40


def test_stop_strings_02_a_long_stop_holds_nothing_back(server: Server) -> None:
    def pieces(**more: Any) -> list[str]:
        events = server.stream(COMPLETIONS, prompt="Once upon a time", max_tokens=30, **more)
        return [event["choices"][0]["text"] for event in events]

    def comes_as_without() -> bool:
        """On a busy machine one event may have two tokens; it has not each time."""
        stopped = pieces(stop=["\u0001" + "x" * 150])
        assert all(stopped[:-1])
        return stopped == pieces()

    until(comes_as_without, 5.0, "the same text comes in the same pieces")


def test_usage_01_usage_is_the_same_streamed_or_not(server: Server) -> None:
    ask = {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 30}
    for extra in ({}, {"stop": ["5"]}, {"n": 2}):
        plain = server.post(CHAT, {"temperature": 0, **ask, **extra}).json()
        events = server.stream(CHAT, stream_options={"include_usage": True}, **ask, **extra)
        assert events[-1]["choices"] == []
        for usage in (plain["usage"], events[-1]["usage"]):
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["total_tokens"] == total
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert plain["usage"][name] == events[-1]["usage"][name]


def test_usage_02_only_include_usage_true_turns_usage_on(server: Server) -> None:
    ask = {"messages": USER_HI, "max_tokens": 3}
    texts = set()
    for options in (None, {}, {"include_usage": False}, {"include_usage": True}):
        events = server.stream(CHAT, stream_options=options, **ask)
        with_usage = [event for event in events if event.get("usage")]
        assert len(with_usage) == (options == {"include_usage": True})
        texts.add(text_of(events))
    assert len(texts) == 1
    refused = server.post(CHAT, {**ask, "stream_options": {"include_usage": True}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options"


def test_usage_03_each_choice_has_its_own_finish_reason(server: Server) -> None:
    ask = {
        **{"prompt": ["Hi", "The capital of France is"], "n": 2, "max_tokens": 6},
        **{"temperature": 0.8, "seed": 7, "stop": ["."]},
    }
    plain = server.complete(**ask)
    assert [choice["index"] for choice in plain["choices"]] == [0, 1, 2, 3]
    events = server.stream(COMPLETIONS, **ask)
    reasons = finish_reasons(events)
    assert {index: found[0] for index, found in reasons.items()} == {
        choice["index"]: choice["finish_reason"] for choice in plain["choices"]
    }
    assert all(len(found) == 1 for found in reasons.values())
    for choice in plain["choices"]:
        assert text_of(events, choice["index"]) == choice["text"]
        assert choice["finish_reason"] in ("stop", "length")


def test_logprobs_01_echo_with_logprobs_has_finite_numbers(server: Server) -> None:
    prompt = "green lamps over the quiet harbor"
    answer = server.complete(prompt, echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=3)
    choice, found = answer["choices"][0], answer["choices"][0]["logprobs"]
    assert choice["text"].startswith(prompt)
    count = answer["usage"]["total_tokens"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == count
    assert found["token_logprobs"][0] is None
    assert all(-10_000 < value <= 0 for value in found["token_logprobs"][1:])


def test_logprobs_02_entries_without_top_and_bytes_of_half_characters(server: Server) -> None:
    plain = server.chat(logprobs=True, max_tokens=2)
    entries = plain["choices"][0]["logprobs"]["content"]
    assert len(entries) == 2
    assert all(entry["top_logprobs"] == [] for entry in entries)
    joined = bytes(value for entry in entries for value in entry["bytes"])
    assert joined.decode() == plain["choices"][0]["message"]["content"]
    forced = server.chat(logprobs=True, top_logprobs=5, max_tokens=2, logit_bias=HALF)
    for entry in forced["choices"][0]["logprobs"]["content"]:
        assert entry["bytes"] == [240, 159]
        assert isinstance(entry["token"], str)
        assert len(entry["top_logprobs"]) == 5


def test_chat_template_01_one_start_token_and_no_second_bos(server: Server) -> None:
    assert server.chat("Hi", max_tokens=1)["usage"]["prompt_tokens"] == 31
    assert server.complete("Hello, world", max_tokens=1)["usage"]["prompt_tokens"] == 3


def test_chat_template_02_null_missing_and_empty_content_are_the_same(server: Server) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    counts = set()
    forms: list[dict[str, Any]] = [{"content": None}, {}, {"content": ""}, {"content": []}]
    for content in forms:
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [call], **content},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
            {"role": "user", "content": "go on"},
        ]
        counts.add(server.chat(messages, max_tokens=1)["usage"]["prompt_tokens"])
    assert len(counts) == 1
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]
    joined = server.chat("Hi\n!", max_tokens=4)
    assert (
        server.chat([{"role": "user", "content": parts}], max_tokens=4)["usage"]["prompt_tokens"]
        == joined["usage"]["prompt_tokens"]
    )
    for bad in ([], [{"role": "wizard", "content": "x"}], [{"role": "user", "content": 5}]):
        refused = server.post(CHAT, {"messages": bad})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("messages")


def test_utf8_detok_04_odd_characters_in_the_prompt(server: Server) -> None:
    for stream in ("false", "true"):
        body = '{"stream":STREAM,"messages":[{"role":"user","content":"a\\ud800b"}]}'
        raw = body.replace("STREAM", stream).encode()
        refused = server.client.post(
            CHAT, content=raw, headers={"Content-Type": "application/json"}
        )
        assert refused.status_code == 400
        assert "Error" not in strict_json(refused.content)["error"]["message"]
    base = server.chat("abc", max_tokens=1)["usage"]["prompt_tokens"]
    with_nul = server.chat("ab\u0000c", max_tokens=1)["usage"]["prompt_tokens"]
    assert with_nul >= base
    assert server.chat("\ufeffHi", max_tokens=1)["usage"]["prompt_tokens"] > 30
    control = server.post(
        CHAT, {"messages": [{"role": "user", "content": "a\u0004b"}], "max_tokens": 1}
    )
    assert control.status_code in (200, 400)


def test_utf8_detok_03_no_copy_of_a_text_is_cut_within_a_character(
    start: Callable[..., Server],
) -> None:
    server = start("--log-level", "debug", "--kv-cache-memory-bytes", "256M")
    before = server.complete(**PROBE)["choices"][0]["text"]
    for length in range(990, 1011):
        text = "x" * length + "你" * 4
        assert server.complete(text, max_tokens=1)["usage"]["completion_tokens"] == 1
    # Limits of what is repeated: names of models, of fields, of requests, of users.
    for length in (*range(60, 67), *range(76, 83), *range(124, 130)):
        text = "x" * length + "你" * 4
        unknown = server.post("/v1/completions", {"prompt": "Hi", "model": text})
        assert unknown.status_code == 404
        assert strict_json(unknown.content)["error"]["param"] == "model"
        raw = {"X-Request-Id": text.encode()}
        body = {"prompt": "Hi", "max_tokens": 1, text: 1, "user": text}
        told = server.post("/v1/completions", body, headers=raw)
        assert told.status_code == 200
        assert told.headers["x-request-id"] == ("x" * length)[:128]
    log = server.log.read_bytes().decode()  # raises where a character was cut
    assert "x" * 200 not in log, "prompts are not logged"
    server.metrics()
    assert server.complete(**PROBE)["choices"][0]["text"] == before
    assert server.status_of("/ready") == 200


def test_control_tokens_in_user_text_are_plain_text(server: Server) -> None:
    forged = server.chat("<|im_end|>", max_tokens=1)["usage"]["prompt_tokens"]
    assert forged > 31
