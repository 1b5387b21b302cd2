"""The fixed answer in place of another server's, for whatever the client has asked for."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from headway.core.route.table import RoutesSettings
from headway.service.gateway.books import NoLimits
from headway.service.gateway.journey import Books
from headway.service.upstream.settings import Kind, Modality, Timeouts
from tests.unit.service.gateway.fakes import COMPLETIONS, NATIVE, run, until
from tests.unit.service.gateway.test_records import Kept
from tests.unit.service.gateway.test_routing import Prices, streamed, told
from tests.unit.service.gateway.test_routing_upstreams import (
    SEEN,
    answering,
    ask,
    both,
    busy,
    text_of,
)
from tests.upstreams import Pen, Seen, answer, chunk, front, upstream, usage_chunk

TEXT = "Later."
ROUTES = {"degrade": {"answer": TEXT, "answer_after_s": 0.05}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
HI = [{"role": "user", "content": "Hi"}]


async def silent(seen: Seen, pen: Pen) -> None:
    """A script: nothing, for ever."""
    await pen.gone()


async def past_the_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()  # the clock that the limit goes by
    await until(lambda: loop.time() > began + 0.1)


@pytest.mark.spec("J6")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"messages": SEEN},
        {"top_a": 0.3, "stream_options": {"include_usage": True}},
        {"response_format": {"type": "text"}, "n": 2},
    ],
)
def test_a_silent_server_gets_the_fixed_answer_in_its_place(
    stream: bool, fields: dict[str, Any]
) -> None:
    more = {} if stream else {"stream_options": None}

    async def scenario() -> None:
        images = {"modalities": (Modality.IMAGE,)}
        async with upstream(silent) as theirs, both(theirs, answering(), ROUTES, **images) as here:
            found = await ask(here, "m", stream=stream, **{**fields, **more})
            assert found.status_code == 200
            text = streamed(found) if stream else text_of(found)
            assert text == TEXT * (fields.get("n", 1) if stream else 1)
            assert told(found)["degraded"] == "answer"
            assert await here.outcomes() == {"ok": 1}
            assert await here.in_flight() == 0

    run(scenario())


def test_completions_and_the_native_path_get_it_in_their_own_form() -> None:
    async def scenario() -> None:
        async with upstream(silent) as theirs, both(theirs, answering(), ROUTES) as here:
            asked = {"model": "m", "prompt": ["a", "b"], "min_tokens": 1, "top_a": 1}
            found = (await here.client.post(COMPLETIONS, json=asked)).json()
            assert [each["text"] for each in found["choices"]] == [TEXT, TEXT]
            native = await here.client.post(f"{NATIVE}?model=m", json={"messages": HI, "top_a": 1})
            assert f'"token":"{TEXT}"' in native.text
            assert native.text.endswith("data: [DONE]\n\n")

    run(scenario())


def test_it_needs_no_engine_of_ours() -> None:
    async def scenario() -> None:

        routes = msgspec.convert(ROUTES, RoutesSettings)
        ledger = Kept()
        books = Books(NoLimits(), ledger, Prices(), time.time, "g")
        async with upstream(silent) as theirs, front([theirs], routes=routes, books=books) as here:
            found = await here.chat(tools=TOOLS)
            assert text_of(found) == TEXT
            record = await ledger.one()
            assert (record.cost, record.sent_tokens, record.outcome) == (0, 0, "ok")

    run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"structured_outputs": {"choice": ["a", "b"]}},
    ],
)
def test_who_could_make_nothing_of_a_text_waits_for_the_answer(fields: dict[str, Any]) -> None:
    async def late(seen: Seen, pen: Pen) -> None:
        await past_the_time()
        await pen.answer(200, answer("At last"))

    async def scenario() -> None:
        async with upstream(late) as theirs, both(theirs, answering(), ROUTES) as here:
            assert text_of(await ask(here, "m", **fields)) == "At last"

    run(scenario())


def call_part(index: int, **function: str) -> dict[str, Any]:
    """A part of a call of a tool."""
    more = {"id": f"c{index}", "type": "function"} if "name" in function else {}
    return {"index": index, "function": function, **more}


@pytest.mark.spec("J6")
@pytest.mark.parametrize(
    "fields", [{"tools": TOOLS}, {"logprobs": True}], ids=["tools", "logprobs"]
)
def test_a_whole_answer_whose_first_token_came_in_time_takes_all_the_time_it_needs(
    fields: dict[str, Any],
) -> None:
    async def slow(seen: Seen, pen: Pen) -> None:
        assert seen.json["stream"] is True
        assert seen.json["stream_options"] == {"include_usage": True}
        first = chunk("Hel", system_fingerprint="theirs")
        first["choices"][0]["delta"]["role"] = "assistant"
        first["choices"][0]["logprobs"] = {"content": [{"token": "Hel", "logprob": -1.0}]}
        await pen.begin()
        await pen.events(first)
        await past_the_time()
        last = chunk("lo")
        last["choices"][0]["logprobs"] = {"content": [{"token": "lo", "logprob": -2.0}]}
        calls = [
            [call_part(0, name="f", arguments='{"a"')],
            [call_part(0, arguments=":1}"), call_part(1, name="g", arguments="{}")],
        ]
        parts = [chunk() for _ in calls]
        for part, called in zip(parts, calls, strict=True):
            part["choices"][0]["delta"] = {"tool_calls": called}
        await pen.events(last, *parts, chunk(finish="tool_calls"), usage_chunk(), "[DONE]")
        await pen.end()

    async def scenario() -> None:
        async with upstream(slow) as theirs, both(theirs, answering(), ROUTES) as here:
            found = await ask(here, "m", **fields)
            assert "x-headway-degraded" not in found.headers
            body = found.json()
            assert body["object"] == "chat.completion"
            assert (body["model"], body["system_fingerprint"]) == ("m", "theirs")
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"] == {
                "role": "assistant",
                "content": "Hello",
                "tool_calls": [
                    {
                        "id": "c0",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    },
                    {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            }
            assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-1.0, -2.0]
            assert body["usage"]["total_tokens"] == 10

    run(scenario())


def test_what_cannot_be_put_together_is_asked_for_in_one_piece() -> None:
    async def whole(seen: Seen, pen: Pen) -> None:
        assert not seen.json.get("stream")
        await pen.answer(200, answer("Whole"))

    async def scenario() -> None:
        async with upstream(whole) as theirs, both(theirs, answering(), ROUTES) as here:
            both_of_them = {"tools": TOOLS, "logprobs": True}  # llama.cpp would refuse a stream
            for fields in (both_of_them, {"use_beam_search": True}, {"best_of": 2}):
                assert text_of(await ask(here, "m", **fields)) == "Whole"

    run(scenario())


def test_a_completion_is_put_together_prompt_by_prompt() -> None:
    def piece(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": None}
        return {"id": "x", "object": "text_completion", "model": "t", "choices": [choice]}

    async def slow(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.events(piece(1, "b"))
        await past_the_time()
        await pen.events(piece(0, "a"), piece(1, "B", "stop"), piece(0, "A", "length"), "[DONE]")
        await pen.end()

    async def scenario() -> None:
        async with upstream(slow) as theirs, both(theirs, answering(), ROUTES) as here:
            asked = {"model": "m", "prompt": ["x", "y"]}
            body = (await here.client.post(COMPLETIONS, json=asked)).json()
            assert body["object"] == "text_completion"
            assert [(each["text"], each["finish_reason"]) for each in body["choices"]] == [
                ("aA", "length"),
                ("bB", "stop"),
            ]
            assert body["usage"]["is_estimated"] is True

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_breaks_off_before_the_time_is_an_error_still(stream: bool) -> None:
    async def scenario() -> None:
        routes = {"degrade": {"answer": TEXT, "answer_after_s": 30}}
        async with upstream(busy) as theirs, both(theirs, answering(), routes) as here:
            assert (await ask(here, "m", stream=stream)).status_code == 503

    run(scenario())


def test_a_server_that_lets_its_own_time_pass_gets_it_at_once() -> None:
    async def scenario() -> None:
        routes = {"degrade": {"answer": TEXT, "answer_after_s": 30}}
        limits = Timeouts(first_token=0.05)
        more = {"timeouts": limits, "kind": Kind.VLLM}
        async with upstream(silent) as theirs, both(theirs, answering(), routes, **more) as here:
            assert text_of(await ask(here, "m")) == TEXT

    run(scenario())
