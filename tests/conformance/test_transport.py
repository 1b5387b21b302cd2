"""Every Transport behaves the same: in a thread of this process, and over ZeroMQ."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from headway.core.base.errors import ReplicaLost, ReplicaNotReady
from headway.core.messages.health import ReplicaHello
from headway.core.messages.path import Event, Finished, FinishReason, Started, Tokens
from headway.service.observe.clock import SystemClock
from headway.service.replica.driver import Driver
from headway.service.wire.inproc import InprocTransport, Loop, Send
from headway.service.wire.transport import Mailbox, ReplicaState, Transport
from tests.fault.processes import make_child_importable, supervised, until
from tests.fault.scripted import (
    CARD,
    CRASH,
    MAX_OPEN,
    ScriptedEngine,
    ScriptedExecutor,
    hello,
    request,
)

Ready = Callable[[float], AbstractAsyncContextManager[Transport]]


@asynccontextmanager
async def in_a_thread(step_s: float) -> AsyncIterator[Transport]:
    executor = ScriptedExecutor(step_s)

    def build(send: Send) -> tuple[Loop, ReplicaHello]:
        return Driver(ScriptedEngine(), executor, send, SystemClock()), hello(os.getpid())

    transport = InprocTransport(build, SystemClock())
    transport.start()
    try:
        await transport.wait_ready()
        yield transport
    finally:
        executor.release()
        await transport.stop()


@asynccontextmanager
async def in_a_process(step_s: float) -> AsyncIterator[Transport]:
    async with supervised(step_s=step_s) as supervisor:
        await supervisor.wait_ready()
        yield supervisor


@pytest.fixture(params=[in_a_thread, in_a_process], ids=lambda make: make.__name__)
def ready(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ready:
    make_child_importable(monkeypatch.setenv)
    made: Ready = request.param
    return made


async def read(mailbox: Mailbox) -> list[Event]:
    """Everything up to and with the Finished."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        events.append(await mailbox.get())
    return events


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def tokens_of(events: list[Event]) -> list[Tokens]:
    return [event for event in events if isinstance(event, Tokens)]


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_a_request_gets_started_then_its_tokens_then_one_finished(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.0) as transport:
            events = await read(transport.call(request(max_tokens=5)))
            assert isinstance(events[0], Started)
            assert "".join(t.text for t in tokens_of(events)) == "1 2 3 4 5 "
            assert [i for t in tokens_of(events) for i in t.token_ids] == [7] * 5
            assert finished(events).reason is FinishReason.LENGTH
            assert finished(events).usage.completion_tokens == 5
            assert len(events) == len(tokens_of(events)) + 2

    run(test())


def test_a_slow_reader_finds_its_tokens_merged_into_one_event(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.0) as transport:
            slow = transport.call(request("slow", max_tokens=50))
            await until(lambda: steps_of(transport) >= 50, "all tokens have come")
            await until(lambda: running(transport) == 0, "the last report is here")
            events = await read(slow)
            assert [type(event) for event in events] == [Started, Tokens, Finished]
            assert len(tokens_of(events)[0].token_ids) == 50
            assert tokens_of(events)[0].finish_reason is FinishReason.LENGTH

    run(test())


def test_requests_run_at_once_and_do_not_mix(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.001) as transport:
            boxes = [transport.call(request(f"r{n}", max_tokens=n)) for n in range(1, MAX_OPEN)]
            results = await asyncio.gather(*(read(box) for box in boxes))
            for number, events in enumerate(results, 1):
                assert {event.request_id for event in events} == {f"r{number}"}
                assert sum(len(t.token_ids) for t in tokens_of(events)) == number

    run(test())


def test_a_cancelled_request_ends_with_one_finished(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.001) as transport:
            mailbox = transport.call(request(max_tokens=10**9))
            assert isinstance(await mailbox.get(), Started)
            transport.cancel("r1")
            events = await read(mailbox)
            assert finished(events).reason is FinishReason.CANCELLED
            await until(lambda: running(transport) == 0, "the engine is idle")

    run(test())


def test_cancelling_an_ended_or_unknown_request_is_harmless(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.0) as transport:
            await read(transport.call(request("r1")))
            transport.cancel("r1")
            transport.cancel("never seen")
            events = await read(transport.call(request("r2")))
            assert finished(events).reason is FinishReason.LENGTH

    run(test())


def test_a_request_the_engine_refuses_ends_with_the_error_and_its_code(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.001) as transport:
            too_long = request("long", prompt_tokens=CARD.context_length + 1)
            [event] = await read(transport.call(too_long))
            assert isinstance(event, Finished)
            assert (event.reason, event.error) == (FinishReason.ERROR, "the prompt is too long")
            assert event.error_code is None
            for number in range(MAX_OPEN):
                transport.call(request(f"r{number}", max_tokens=10**9))
            [event] = await read(transport.call(request("one more")))
            assert isinstance(event, Finished)
            assert (event.reason, event.error_code) == (FinishReason.ERROR, "queue_full")

    run(test())


def test_an_engine_that_raises_fails_every_open_mailbox(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.001) as transport:
            other = transport.call(request("other", max_tokens=10**9))
            assert isinstance(await other.get(), Started)
            crashing = transport.call(request("crash", order=CRASH))
            for mailbox in (other, crashing):
                with pytest.raises(ReplicaLost):
                    await read(mailbox)
                with pytest.raises(ReplicaLost):  # also when asked again
                    await mailbox.get()

    run(test())


def test_nothing_is_sent_to_a_replica_that_is_not_ready(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.0) as transport:
            stopped = transport
            assert transport.view().state is ReplicaState.READY
            assert transport.view().hello is not None
        assert stopped.view().state is ReplicaState.STOPPED
        with pytest.raises(ReplicaNotReady) as caught:
            stopped.call(request())
        assert caught.value.retry_after_s > 0

    run(test())


def test_stopping_fails_what_is_still_open(ready: Ready) -> None:
    async def test() -> None:
        async with ready(0.001) as transport:
            mailbox = transport.call(request(max_tokens=10**9))
            assert isinstance(await mailbox.get(), Started)
        with pytest.raises(ReplicaLost):
            await read(mailbox)

    run(test())


def steps_of(transport: Transport) -> int:
    status = transport.view().status
    return 0 if status is None else status.num_steps


def running(transport: Transport) -> int:
    status = transport.view().status
    return -1 if status is None else status.num_running
