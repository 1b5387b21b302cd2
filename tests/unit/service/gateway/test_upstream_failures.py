"""Servers behind the gateway that fail, fill up, fall silent or go away, over real HTTP."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from headway.core.route.breaker import BreakerSettings
from headway.service.upstream.settings import Kind, Timeouts
from tests.unit.service.gateway.fakes import (
    DEADLINE_S,
    close,
    post,
    run,
    until,
)
from tests.upstreams import (
    CHAT,
    HI,
    FakeUpstream,
    Front,
    Pen,
    Seen,
    chunk,
    events_of,
    front,
    hello,
    text_of,
    upstream,
)

IN_FLIGHT = "headway_upstream_in_flight_requests"
LEFT = ("silent", "half")
PATIENT = Timeouts(first_token=600.0, between_chunks=600.0, total=600.0)
STREAM = {"stream": True}
THREE = ("Zwei 你好 ", "🙂 ", "drei")


async def settled(here: Front) -> None:
    """Wait until nothing is in flight by any count."""
    async with asyncio.timeout(DEADLINE_S):
        while await here.in_flight():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["reset", "close", "silence"])
def test_streaming_sse_02_an_answer_that_breaks_off_ends_with_one_error_event(end: str) -> None:
    hold = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.events(*(chunk(text) for text in THREE))
        if end == "silence":
            await hold.wait()
        elif end == "reset":
            await asyncio.sleep(0.1)  # what was written has to leave before the reset
            pen.reset()
        else:
            await pen.end()
            pen.close()

    async def scenario() -> None:
        times = Timeouts(between_chunks=0.3)
        async with (
            upstream(script) as one,
            upstream(script) as two,
            front([one, two], timeouts=times) as here,
        ):
            found = await here.chat(**STREAM)
            events = events_of(found.text)
            assert found.status_code == 200
            assert text_of(events) == "".join(THREE)
            assert len(events) == 4
            assert events[-1]["error"]["type"] == "server_error"
            finishes = [each["choices"][0]["finish_reason"] for each in events[:-1]]
            assert finishes == [None, None, None]
            await settled(here)
            assert await here.outcomes() == {"error": 1}
            assert len(one.seen) + len(two.seen) == 1
            assert here.parts.models.default.admitter.num_in_flight == 0
            hold.set()

    run(scenario())


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("variant", ["silent", "unhealthy"])
def test_keepalive_timeouts_02_a_request_that_one_server_never_answers_goes_on_at_another(
    variant: str, *, is_streamed: bool
) -> None:
    """The probes find a server that hangs as a whole; a stream's first token is waited for less."""

    async def silent(seen: Seen, pen: Pen) -> None:
        await pen.gone()

    async def scenario() -> None:
        times = Timeouts(first_token=1.0, total=600.0, probe=0.2)
        async with (
            upstream(silent) as one,
            upstream(hello) as two,
            front([one, two], timeouts=times, probe_interval=0.1, max_skew=0) as here,
        ):
            asked = [asyncio.create_task(here.chat(stream=is_streamed)) for _ in range(20)]
            await until(lambda: bool(one.seen))
            if variant == "unhealthy" or not is_streamed:
                one.health = 500
            answers = await asyncio.gather(*asked)  # sooner than `total`: `run` has a bound
            assert {each.status_code for each in answers} == {200}
            await settled(here)
            assert await here.outcomes() == {"ok": 20}
            assert sum((await here.metric("headway_upstream_retries_total")).values()) > 0

    run(scenario())


def test_keepalive_timeouts_02_without_another_server_it_ends_with_a_504_in_time() -> None:
    async def silent(seen: Seen, pen: Pen) -> None:
        await pen.gone()

    async def scenario() -> None:
        async with (
            upstream(silent) as theirs,
            front([theirs], timeouts=Timeouts(total=0.3)) as here,
        ):
            for streamed in (True, False):
                found = await here.chat(stream=streamed)
                assert found.status_code == 504
                assert found.json()["error"]["code"] == "upstream_timeout"
            await settled(here)

    run(scenario())


async def as_asked(seen: Seen, pen: Pen) -> None:
    """A script: what becomes of a request stands in it."""
    kind = seen.json["kind"]
    if kind == "busy":
        await pen.answer(429, {"error": {"message": "full"}})  # and no time to wait for
    elif kind == "reset":
        pen.reset()
    elif kind == "wrong":
        await pen.answer(400, {"error": {"message": "no"}})
    elif kind == "well":
        await hello(seen, pen)
    else:
        if kind == "half":
            await pen.begin()
            await pen.events(chunk("Hel"))
        await pen.gone()


async def leave(here: Front, kind: str, number: int, of: Sequence[FakeUpstream]) -> None:
    """Ask for a stream, and leave once the upstream has it or has begun it."""
    body = {**HI, "kind": kind, "stream": True, "number": number}
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(post(CHAT, body, {}))
    if kind == "half":
        await reader.readuntil(b"Hel")
    else:
        sent = (number, kind)
        await until(
            lambda: sent in [(s.json.get("number"), s.json["kind"]) for f in of for s in f.seen]
        )
    await close(writer)


async def lowest_of(here: Front, found: list[float]) -> None:
    """Note the lowest count of requests in flight, for ever."""
    while True:
        found.append(min((await here.metric(IN_FLIGHT)).values()))
        await asyncio.sleep(0.02)


def test_gateway_health_03_counts_of_running_requests_come_down_whatever_happens() -> None:
    """Every kind of end over two servers; counts are never negative, and 0 in the end."""

    async def scenario() -> None:
        times = Timeouts(first_token=1.0, total=1.0)
        breaker = BreakerSettings(failures=10_000, window=10_000)
        async with (
            upstream(as_asked) as one,
            upstream(as_asked) as two,
            front([one, two], timeouts=times, breaker=breaker) as here,
        ):
            kinds = ["busy", "reset", "wrong", "silent", *["well"] * 4]
            asked = [here.chat(kind=kind, stream=i % 2 == 0) for i in range(20) for kind in kinds]
            left = [leave(here, kind, i, (one, two)) for kind in LEFT for i in range(20)]
            found: list[float] = []
            watching = asyncio.create_task(lowest_of(here, found))
            leaving = asyncio.gather(*left)
            answers = await asyncio.gather(*asked)
            await leaving
            await settled(here)
            watching.cancel()
            assert min(found) >= 0.0  # and 0 in the end, as settled() has seen
            outcomes = await here.outcomes()
            assert sum(outcomes.values()) == len(asked) + len(left)
            # On a slow machine some that would have gone well are too late.
            assert outcomes["ok"] == sum(each.status_code == 200 for each in answers) > 0
            assert outcomes["cancelled"] > 0

    run(scenario())


@pytest.mark.spec("A8")
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_client_that_leaves_ends_its_request_upstream_at_once(*, has_begun: bool) -> None:
    gone = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        if seen.path == "/abort_request":
            return await pen.answer(200, {})
        if has_begun:
            await pen.begin()
            await pen.events(chunk("Hel"))
        await pen.gone()
        gone.set()

    async def scenario() -> None:
        async with (
            upstream(script) as theirs,
            front([theirs], kind=Kind.SGLANG, timeouts=PATIENT) as here,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(post(CHAT, {**HI, **STREAM}, {}))
            await until(lambda: bool(theirs.seen))
            if has_begun:
                await reader.readuntil(b"Hel")
            await close(writer)
            async with asyncio.timeout(DEADLINE_S):
                await gone.wait()
            await until(lambda: len(theirs.seen) == 2)
            assert theirs.seen[1].json == {"rid": theirs.seen[0].json["rid"]}
            await settled(here)
            assert await here.outcomes() == {"cancelled": 1}

    run(scenario())


@pytest.mark.parametrize(
    ("status", "headers", "wanted", "code"),
    [
        (401, (), 502, "upstream_misconfigured"),
        (404, (), 502, "upstream_misconfigured"),
        (302, ("location: http://127.0.0.1:1/",), 502, "upstream_misconfigured"),
        (429, ("retry-after: 9",), 503, "upstream_busy"),
        (503, ("retry-after: 9",), 503, "upstream_busy"),
        (400, (), 400, None),
        (500, (), 502, "upstream_error"),
    ],
)
def test_a_refusal_is_told_as_ours_or_as_the_clients(
    status: int, headers: tuple[str, ...], wanted: int, code: str | None
) -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(status, {"error": {"message": "no, their-model"}}, *headers)

    async def scenario() -> None:
        async with upstream(script) as theirs, front([theirs], model="their-model") as here:
            for streamed in (True, False):
                found = await here.chat(stream=streamed)
                assert found.status_code == wanted
                assert found.json()["error"]["code"] == code
                assert "their-model" not in found.text
                if code == "upstream_busy":
                    assert found.headers["retry-after"] == "9"
            await settled(here)

    run(scenario())


def test_a_redirect_is_never_followed() -> None:
    urls: list[str] = []

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(307, {}, f"location: {urls[0]}/v1/chat/completions")

    async def scenario() -> None:
        async with upstream(hello) as canary, upstream(script) as theirs:
            urls.append(canary.url)
            async with front([theirs]) as here:
                assert (await here.chat()).status_code == 502
                assert canary.num_connections == 0

    run(scenario())


def test_what_one_server_refuses_to_take_another_may() -> None:
    async def busy(seen: Seen, pen: Pen) -> None:
        await pen.answer(503, {}, "retry-after: 3")

    async def scenario() -> None:
        async with upstream(busy) as one, upstream(hello) as two, front([one, two]) as here:
            num_asked = 0
            while not one.seen:  # which of two idle servers gets a request hangs on their ports
                assert (await here.chat()).status_code == 200
                num_asked += 1
            assert len(one.seen) == 1
            assert len(two.seen) == num_asked

    run(scenario())


def test_a_server_that_is_not_there_is_left_out_and_taken_back() -> None:
    async def scenario() -> None:
        async with upstream(hello) as one:
            two_port = int(one.url.rpartition(":")[2])
            async with upstream(hello) as two:
                two_port = int(two.url.rpartition(":")[2])
            async with front([one, f"http://127.0.0.1:{two_port}"], probe_interval=0.05) as here:
                for _ in range(5):
                    assert (await here.chat()).status_code == 200
                assert sorted((await here.metric("headway_upstream_up")).values()) == [0.0, 1.0]
                async with upstream(hello, two_port) as back:
                    async with asyncio.timeout(DEADLINE_S):
                        while not back.seen:
                            assert (await here.chat()).status_code == 200
                assert (await here.client.get("/ready")).status_code == 200

    run(scenario())


def test_readiness_and_the_list_of_models_follow_the_upstream() -> None:
    async def scenario() -> None:
        async with upstream(hello) as theirs:
            theirs.models = [{"id": "their-model", "max_model_len": 4096}]
            async with front([theirs], model="their-model", probe_interval=0.05) as here:
                assert (await here.client.get("/ready")).status_code == 200
                await until(lambda: here.pool.context_length() is not None)
                (model,) = (await here.client.get("/v1/models")).json()["data"]
                assert (model["id"], model["max_model_len"]) == ("m", 4096)
                assert "their-model" not in json.dumps(model)
                theirs.health = 500
                await until(lambda: here.pool.view().state.value != "ready")
                assert (await here.client.get("/ready")).status_code == 503
                assert (await here.client.get("/health")).status_code == 200
                refused = await here.chat()
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                assert await here.outcomes() == {"rejected_not_ready": 1}

    run(scenario())


def test_requests_wait_for_room_and_too_many_are_refused() -> None:
    release = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await release.wait()
        await hello(seen, pen)

    async def scenario() -> None:
        async with (
            upstream(script) as theirs,
            front([theirs], max_concurrent=2, max_waiting=3) as here,
        ):
            asked = [asyncio.create_task(here.chat()) for _ in range(5)]
            waiting = "headway_upstream_waiting_requests"
            async with asyncio.timeout(DEADLINE_S):
                while sum((await here.metric(waiting)).values()) < 3:
                    await asyncio.sleep(0.01)
            assert len(theirs.seen) == 2
            refused = await here.chat()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "queue_full"
            release.set()
            assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
            await settled(here)
            assert await here.outcomes() == {"ok": 5, "rejected_queue_full": 1}

    run(scenario())
