"""A client that goes away ends its request at once, however and whenever it goes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headway.core.base.errors import ShuttingDown
from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.service.gateway.flights import Flights
from headway.service.gateway.http import ClientGone, Exchange
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    HI,
    FakeReplica,
    Site,
    close,
    reset,
    run,
    say_hello,
    site,
    until,
)


async def by_close(writer: asyncio.StreamWriter) -> None:
    await close(writer)


async def by_reset(writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def by_half_close(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


WAYS: Mapping[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "close": by_close,
    "reset": by_reset,
    "half-close": by_half_close,
}


async def is_clean(here: Site, gone: str) -> None:
    """The engine was told, the place is free and the request is counted as cancelled."""
    await until(lambda: gone in here.replica.cancelled and here.admitter.num_in_flight == 0)
    await until(lambda: here.admitter.num_choices == 0)
    async with asyncio.timeout(5):
        while (await here.outcomes()).get("cancelled") != 1:
            await asyncio.sleep(0.005)
    assert sum((await here.outcomes()).values()) == 1


@pytest.mark.spec("A8")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("is_started", [True, False])
def test_a_client_that_leaves_is_cancelled_at_once_cancel_01(
    way: str, stream: bool, is_started: bool
) -> None:
    async def scenario() -> None:
        async with site() as here:
            reader, writer = await here.send(CHAT, HI | {"stream": stream})
            (name,) = await here.calls(1)
            if is_started:
                here.replica.start(name)
                here.replica.say(name, "Hel")
                await here.read(name)
                if stream:
                    await reader.readuntil(b"Hel")
            await WAYS[way](writer)
            await is_clean(here, name)
            await close(writer)

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_the_place_of_a_client_that_left_is_free_for_the_next_one_cancel_01(stream: bool) -> None:
    async def scenario() -> None:
        engine = EngineSettings(max_num_seqs=1, max_waiting_requests=1)
        async with site(engine=engine) as here:
            _, first = await here.send(CHAT, HI | {"stream": stream})
            _, second = await here.send(CHAT, HI)
            names = await here.calls(2)
            assert (await here.client.post(CHAT, json=HI)).status_code == 503
            await close(first)
            await until(lambda: here.admitter.num_choices == 1)
            here.replica.script = say_hello
            answer = await here.client.post(CHAT, json=HI)
            assert answer.status_code == 200
            assert here.replica.cancelled == names[:1]
            await close(second)

    run(scenario())


def test_requests_that_leave_the_queue_never_reach_a_step_cancel_02() -> None:
    async def scenario() -> None:
        async with site() as here:
            running = asyncio.create_task(here.client.post(CHAT, json=HI))
            (long,) = await here.calls(1)
            here.replica.start(long)
            writers = [(await here.send(CHAT, HI))[1] for _ in range(4)]
            queued = (await here.calls(5))[1:]
            fifth = asyncio.create_task(here.client.post(CHAT, json=HI))
            last = (await here.calls(6))[5]
            await until(lambda: here.admitter.num_waiting == 5)
            for writer in writers:
                await close(writer)
            await until(lambda: sorted(here.replica.cancelled) == sorted(queued))
            await until(lambda: here.admitter.num_waiting == 1)
            assert list((await here.metric("request_queue_length")).values()) == [1]
            for name in (long, last):
                here.replica.finish(name)
            assert (await running).status_code == (await fifth).status_code == 200

    run(scenario())


def test_every_prompt_of_a_list_is_cancelled() -> None:
    async def scenario() -> None:
        async with site() as here:
            _, writer = await here.send(COMPLETIONS, {"prompt": ["ab", "cd", "ef"]})
            names = await here.calls(3)
            here.replica.finish(names[0])
            await here.read(names[0])
            await close(writer)
            await until(lambda: set(here.replica.cancelled) >= set(names[1:]))
            await until(lambda: here.admitter.num_in_flight == 0)

    run(scenario())


def test_a_client_that_leaves_while_its_body_arrives_is_counted_as_cancelled() -> None:
    async def scenario() -> None:
        async with site() as here:
            _, writer = await here.connect()
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            await until(lambda: True)
            async with asyncio.timeout(5):
                while sum((await here.metric("headway_requests_in_flight")).values()) != 1:
                    await asyncio.sleep(0.002)
            await close(writer)
            async with asyncio.timeout(5):
                while await here.outcomes() != {"cancelled": 1}:
                    await asyncio.sleep(0.002)
            assert not here.replica.requests

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_stops_reading_is_gone_after_the_write_timeout(stream: bool) -> None:
    async def scenario() -> None:
        settings = GatewaySettings(write_timeout=0.2, keepalive_interval=0)
        async with site(settings=settings) as here:
            reader, writer = await here.send(CHAT, HI | {"stream": stream})
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            (name,) = await here.calls(1)
            sent = 0
            while name not in here.replica.cancelled and sent < 400:
                here.replica.say(name, "x" * 100_000)
                sent += 1
                if stream:
                    await asyncio.sleep(0.005)
                elif sent == 400:
                    here.replica.finish(name)
            async with asyncio.timeout(10):
                while here.admitter.num_in_flight or not await here.outcomes():
                    await asyncio.sleep(0.01)
            if stream:
                assert here.replica.cancelled == [name]
                assert await here.outcomes() == {"cancelled": 1}
            assert (await here.client.get("/health")).status_code == 200
            writer.transport.abort()

    run(scenario())


def test_the_engine_is_not_cancelled_after_a_whole_answer() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = say_hello
        async with site(replica=replica) as here:
            for stream in (True, False):
                await here.client.post(CHAT, json=HI | {"stream": stream})
            assert here.replica.cancelled == []

    run(scenario())


def exchange(receive: Callable[[], Awaitable[Any]]) -> Exchange:
    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent here")

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
    return Exchange(scope, receive, send, 1.0)


def test_an_abort_ends_what_is_under_way_and_what_comes_later_with_its_error() -> None:
    async def scenario() -> None:
        flights = Flights()
        error = ShuttingDown("stopped", Seconds(1.0))

        async def stays() -> Any:
            await asyncio.Event().wait()

        async def work() -> None:
            await asyncio.Event().wait()

        running = asyncio.create_task(flights.run(exchange(stays), work()))
        await asyncio.sleep(0)
        flights.abort(error)
        with pytest.raises(ShuttingDown):
            await running
        with pytest.raises(ShuttingDown):
            await flights.run(exchange(stays), work())
        await flights.landed()

    run(scenario())


def test_work_that_is_done_wins_over_a_client_that_leaves_at_the_same_moment() -> None:
    async def scenario() -> None:
        async def leaves() -> Any:
            return {"type": "http.disconnect"}

        async def work() -> None:
            return

        await Flights().run(exchange(leaves), work())
        with pytest.raises(ClientGone):
            await Flights().run(exchange(leaves), asyncio.sleep(10))

    run(scenario())


def test_the_failure_of_a_helper_ends_the_work_and_is_raised() -> None:
    async def scenario() -> None:
        async def stays() -> Any:
            await asyncio.Event().wait()

        async def helper() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Flights().run(exchange(stays), asyncio.sleep(10), helper())

    run(scenario())
