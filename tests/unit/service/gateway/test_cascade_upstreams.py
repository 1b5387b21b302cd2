"""Cascades between pools of every kind: engines of ours, and other servers, first or second."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from headway.core.route.table import RoutesSettings
from headway.core.tenancy.limits import Limits
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.gateway.serving import UpstreamNeeds
from headway.service.observe.clock import SystemClock
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import Kind, UpstreamSettings
from tests.unit.service.gateway.fakes import COMPLETIONS, NATIVE, FakeReplica, run, until
from tests.unit.service.gateway.test_records import Kept
from tests.unit.service.gateway.test_routing import Prices, Reserved, Script, saying, streamed, told
from tests.unit.service.gateway.test_routing_upstreams import ask, both, busy, text_of
from tests.upstreams import (
    CHAT,
    FakeUpstream,
    Front,
    Pen,
    Seen,
    answer,
    chunk,
    front,
    hello,
    upstream,
    usage_chunk,
)
from tests.upstreams import Script as UpstreamScript

ROUTES = {"names": [{"name": "careful", "cascade": {"first": "m", "then": "own"}}]}
TWO: dict[str, Any] = {"names": [{"name": "careful", "cascade": {"first": "m", "then": "big"}}]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SAID = "small talk"


def scores(*values: float) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    return {"content": [{"token": "x", "logprob": each, "top_logprobs": []} for each in values]}


def scoring(logprob: float, *, older: bool = False) -> UpstreamScript:
    """A script: "small", " talk" with that log-probability, if it was asked for."""

    async def script(seen: Seen, pen: Pen) -> None:
        asked = seen.json
        told = scores(logprob) if asked.get("logprobs") else None
        if older and told is not None:
            told = {"tokens": ["x"], "token_logprobs": [logprob], "top_logprobs": [{}]}
        if not asked.get("stream"):
            whole = answer(SAID)
            if "prompt" in asked:
                whole["choices"][0] = {"index": 0, "text": SAID, "finish_reason": "stop"}
            whole["choices"][0]["logprobs"] = told
            return await pen.answer(200, whole)
        pieces = [chunk("small"), chunk(" talk"), chunk(finish="stop")]
        for each in pieces[:2]:
            each["choices"][0]["logprobs"] = told
        await pen.begin()
        await pen.events(*pieces, usage_chunk(7, 2), "[DONE]")
        await pen.end()

    return script


def replying(script: Script) -> FakeReplica:
    replica = FakeReplica()
    replica.script = script
    return replica


@asynccontextmanager
async def two(
    first: UpstreamScript,
    second: UpstreamScript,
    routes: Mapping[str, object] | None = None,
    **more: Any,
) -> AsyncGenerator[tuple[Front, FakeUpstream, FakeUpstream]]:
    """A gateway in front of two other servers: `m`, and `big` behind it."""
    table = msgspec.convert(routes or TWO, RoutesSettings)
    async with upstream(first) as small, upstream(second) as big:
        pool = UpstreamPool(UpstreamSettings(name="big", url=big.url), None, None, SystemClock())
        beside = [UpstreamNeeds(pool, 1)]
        given = {"kind": Kind.VLLM, **more}
        async with front([small], beside=beside, routes=table, **given) as here:
            yield here, small, big
        await pool.stop()


async def outcome(here: Front) -> Sequence[str]:
    counted = await here.metric("headway_cascade_requests_total")
    return [series.split('outcome="')[1].removesuffix('"}') for series in counted]


@pytest.mark.spec("B7")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_sure", [True, False])
def test_another_server_answers_first_and_an_engine_of_ours_if_it_is_not_sure(
    stream: bool, is_sure: bool
) -> None:
    async def scenario() -> None:
        ours = replying(saying("large words"))
        script = scoring(-0.1 if is_sure else -2.0)
        async with upstream(script) as theirs, both(theirs, ours, ROUTES, kind=Kind.VLLM) as here:
            found = await ask(here, "careful", stream=stream)
            text = streamed(found) if stream else text_of(found)
            assert text == (SAID if is_sure else "large words")
            route = "cascade:first" if is_sure else "cascade:escalated"
            assert (told(found)["model"], told(found)["route"]) == (
                "m" if is_sure else "own",
                route,
            )
            sent = theirs.seen[0].json
            assert (sent["logprobs"], sent["top_logprobs"]) == (True, 1)
            assert len(ours.ids) == (0 if is_sure else 1)
            assert 'logprob":-' not in found.text
            assert await outcome(here) == ["kept" if is_sure else "logprob"]
            assert await here.outcomes() == {"ok": 1}
            assert await here.in_flight() == 0

    run(scenario())


@pytest.mark.spec("B7")
@pytest.mark.parametrize(("logprob", "model"), [(-0.1, "m"), (-2.0, "big")])
def test_both_may_be_other_servers(logprob: float, model: str) -> None:
    async def scenario() -> None:
        async with two(scoring(logprob), hello) as (here, small, big):
            for stream in (False, True):
                found = await ask(here, "careful", stream=stream)
                assert told(found)["model"] == model
                text = streamed(found) if stream else text_of(found)
                assert text == (SAID if model == "m" else "Hello")
            assert (len(small.seen), len(big.seen)) == (2, 0 if model == "m" else 2)
            assert all("logprobs" not in each.json for each in big.seen)

    run(scenario())


def test_the_client_gets_the_log_probabilities_that_it_asked_for_itself() -> None:
    async def scenario() -> None:
        async with two(scoring(-0.25), hello) as (here, small, _):
            found = await ask(here, "careful", logprobs=True, top_logprobs=3)
            entries = found.json()["choices"][0]["logprobs"]["content"]
            assert [each["logprob"] for each in entries] == [-0.25]
            assert small.seen[0].json["top_logprobs"] == 3

    run(scenario())


@pytest.mark.parametrize("older", [False, True])
def test_completions_and_the_native_path_are_scored_too(older: bool) -> None:
    async def scenario() -> None:
        async with two(scoring(-0.25, older=older), hello) as (here, small, _):
            asked = {"model": "careful", "prompt": "Hi"}
            found = await here.client.post(COMPLETIONS, json=asked)
            assert found.json()["choices"][0]["text"] == SAID
            assert found.json()["choices"][0]["logprobs"] is None
            assert small.seen[0].json["logprobs"] == 1
            native = await here.client.post(f"{NATIVE}?model=careful", json={"messages": HI})
            assert '"token":"small"' in native.text
            assert await outcome(here) == ["kept"]

    run(scenario())


HI = [{"role": "user", "content": "Hi"}]


def test_a_server_that_tells_no_log_probabilities_after_all_is_not_believed() -> None:
    async def scenario() -> None:
        async with two(hello, scoring(-9.0)) as (here, _, _):
            found = await ask(here, "careful", stream=True)
            assert streamed(found) == SAID
            assert await outcome(here) == ["unscored"]

    run(scenario())


async def breaking(seen: Seen, pen: Pen) -> None:
    """A script: it ends amid the answer."""
    await pen.begin()
    await pen.events(chunk("sm"))
    pen.reset()


@pytest.mark.parametrize("script", [busy, breaking])
def test_a_first_server_that_fails_even_midway_is_answered_for_by_the_second(
    script: UpstreamScript,
) -> None:
    async def scenario() -> None:
        async with two(script, scoring(-0.1)) as (here, _, _):
            found = await ask(here, "careful", stream=True)
            assert streamed(found) == SAID
            assert await outcome(here) == ["error"]
            assert await here.outcomes() == {"ok": 1}

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_doubtful_answer_of_another_server_goes_out_when_the_second_is_too_busy(
    stream: bool,
) -> None:
    async def scenario() -> None:
        async with two(scoring(-2.0), busy) as (here, _, _):
            found = await ask(here, "careful", stream=stream)
            assert (streamed(found) if stream else text_of(found)) == SAID
            assert told(found)["degraded"] == "model"
            assert told(found)["model"] == "m"

    run(scenario())


async def stopping(seen: Seen, pen: Pen) -> None:
    """A script: it stops in the middle of its answer, which it was asked to stream."""
    await pen.begin()
    await pen.events(chunk("lar"))
    await pen.end()


@pytest.mark.spec("J6")
@pytest.mark.parametrize("has_text", [False, True])
def test_a_doubtful_whole_answer_goes_out_when_the_second_server_stops_in_its_midst(
    has_text: bool,
) -> None:
    text: dict[str, Any] = {"degrade": {"answer": "Later.", "answer_after_s": 60}}
    routes = TWO | (text if has_text else {})

    async def scenario() -> None:
        ledger = Kept()
        books = Books(Reserved(), ledger, Prices(), time.time, "g")
        async with two(scoring(-2.0), stopping, routes=routes, books=books) as (here, *_):
            found = await ask(here, "careful")
            assert text_of(found) == SAID
            assert (told(found)["model"], told(found)["degraded"]) == ("m", "model")
            record = await ledger.one()
            assert record.completion_tokens == record.sent_tokens + has_text  # of the second's
            assert record.cost == found.json()["usage"]["total_tokens"]

    run(scenario())


@pytest.mark.spec("B4")
def test_a_whole_answer_that_stops_in_its_midst_is_helped_out_and_its_waste_is_free() -> None:
    routes = {"degrade": {"smaller": {"big": "m"}, "answer": "Later.", "answer_after_s": 60}}

    async def scenario() -> None:
        ledger = Kept()
        books = Books(Reserved(), ledger, Prices(), time.time, "g")
        async with two(hello, stopping, routes=routes, books=books) as (here, *_):
            found = await ask(here, "big")
            assert text_of(found) == "Hello"
            assert (told(found)["model"], told(found)["degraded"]) == ("m", "model")
            record = await ledger.one()
            assert record.completion_tokens == record.sent_tokens + 1
            assert record.cost == found.json()["usage"]["total_tokens"]

    run(scenario())


def test_what_an_engine_of_ours_does_not_know_goes_on_to_the_second_server() -> None:
    routes = {"names": [{"name": "careful", "cascade": {"first": "own", "then": "m"}}]}

    async def refusing(seen: Seen, pen: Pen) -> None:
        await pen.answer(400, {"error": {"message": "not so", "param": "temperature"}})

    async def scenario() -> None:
        ours = replying(saying("small"))
        async with upstream(hello) as theirs, both(theirs, ours, routes) as here:
            found = await ask(here, "careful", tools=TOOLS)
            assert text_of(found) == "Hello"
            assert told(found)["route"] == "cascade:escalated"
            assert await outcome(here) == ["unfit"]
            theirs.script = refusing
            wrong = await ask(here, "careful", temperature="warm")
            assert wrong.status_code == 400
            assert wrong.json()["error"]["param"] == "temperature"

    run(scenario())


@pytest.mark.parametrize(
    ("logprob", "model", "tokens", "cost"),
    [(-0.1, "m", (7, 3, 3), 10), (-2.0, "big", (14, 6, 3), 10 + 1000)],
)
def test_both_calls_are_one_record_and_one_reservation(
    logprob: float, model: str, tokens: tuple[int, int, int], cost: int
) -> None:
    async def scenario() -> None:
        ledger, limits = Kept(), Reserved()
        books = Books(limits, ledger, Prices(), time.time, "g")
        limited = RateLimitSettings(default=Limits(tokens_per_minute=1000))
        given: Mapping[str, Any] = {"books": books, "limits": limited, "kind": Kind.LLAMACPP}
        async with two(scoring(logprob), hello, **given) as (here, _, _):
            await ask(here, "careful", max_tokens=5)
            record = await ledger.one()
            assert record.route is not None
            assert record.route.model == model
            assert (record.prompt_tokens, record.completion_tokens, record.sent_tokens) == tokens
            assert record.cost == cost
            (claim,) = limits.claims
            assert claim.tokens == 2 * (2 + 5)
            assert limits.used == [(tokens[0] + tokens[1], cost)]

    run(scenario())


def test_a_client_that_leaves_while_the_first_server_answers_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def endless(seen: Seen, pen: Pen) -> None:
            await pen.begin()
            await pen.events(chunk("a"))
            await pen.gone()
            gone.set()

        async with two(endless, hello) as (here, small, big):
            body = json.dumps({"model": "careful", "messages": HI, "stream": True})
            request = here.client.build_request("POST", CHAT, content=body)
            asked = asyncio.create_task(here.client.send(request, stream=True))
            await until(lambda: bool(small.seen))
            asked.cancel()
            with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
                await asked
            await asyncio.wait_for(gone.wait(), 5)
            while await here.outcomes() != {"cancelled": 1}:
                await asyncio.sleep(0.005)
            assert big.seen == []
            assert await here.in_flight() == 0

    run(scenario())
