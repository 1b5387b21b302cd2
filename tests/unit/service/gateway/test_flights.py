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
    DEADLINE_S,
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
    await here.counted(cancelled=1)


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
            async with asyncio.timeout(DEADLINE_S):
                while sum((await here.metric("headway_requests_in_flight")).values()) != 1:
                    await asyncio.sleep(0.002)
            await close(writer)
            await here.counted(cancelled=1)
            assert not here.replica.requests

    run(scenario())


async def stopped_reader(here: Site, body: object) -> asyncio.StreamWriter:
    """Ask, then never read: the kernel's buffers fill."""
    reader, writer = await here.send(CHAT, body)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    return writer


SOON_GONE = GatewaySettings(write_timeout=0.2, keepalive_interval=0)
PIECE = "x" * 100_000


def test_a_stream_whose_reader_stops_reading_is_cancelled_after_the_write_timeout() -> None:
    async def scenario() -> None:
        async with site(settings=SOON_GONE) as here:
            writer = await stopped_reader(here, HI | {"stream": True})
            (name,) = await here.calls(1)

            def still_talking() -> bool:
                here.replica.say(name, PIECE)  # merged while nobody takes it
                return name in here.replica.cancelled

            await until(still_talking)
            await until(lambda: here.admitter.num_in_flight == 0)
            await here.counted(cancelled=1)
            writer.transport.abort()

    run(scenario())


def test_a_whole_answer_that_is_not_read_does_not_hold_its_connection() -> None:
    async def scenario() -> None:
        async with site(settings=SOON_GONE) as here:
            writer = await stopped_reader(here, HI)
            (name,) = await here.calls(1)
            here.replica.say(name, PIECE * 200)
            here.replica.finish(name)
            await here.gateway.landed()
            assert here.admitter.num_in_flight == 0
            assert here.num_connections == 1
            await until(lambda: here.num_connections == 0)
            writer.transport.abort()

    run(scenario())


def test_a_slow_reader_that_does_read_gets_all_of_a_large_answer() -> None:
    async def scenario() -> None:
        settings = GatewaySettings(write_timeout=2.0)
        async with site(settings=settings) as here:
            reader, writer = await here.send(CHAT, HI)
            (name,) = await here.calls(1)
            here.replica.say(name, PIECE * 200)
            here.replica.finish(name)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            began, got = asyncio.get_running_loop().time(), 0
            while got < length:  # in all for longer than the limit, never as long in one go
                got += len(await reader.read(260_000))
                await asyncio.sleep(0.03)
            assert asyncio.get_running_loop().time() - began > settings.write_timeout
            await close(writer)

    run(scenario())


def test_the_server_ends_although_a_client_has_not_read_its_answer() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(write_timeout=60)) as here:
            writer = await stopped_reader(here, HI)
            (name,) = await here.calls(1)
            here.replica.say(name, PIECE * 200)
            here.replica.finish(name)
            await here.gateway.landed()
            server = here.server
        assert server.server_state.connections == set()
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
    return Exchange(scope, receive, send)


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
            await Flights().run(exchange(leaves), asyncio.sleep(600))

    run(scenario())


def test_the_failure_of_a_helper_ends_the_work_and_is_raised() -> None:
    async def scenario() -> None:
        async def stays() -> Any:
            await asyncio.Event().wait()

        async def helper() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Flights().run(exchange(stays), asyncio.sleep(600), helper)

    run(scenario())
