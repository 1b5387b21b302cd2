"""What only the in-process transport does; the rest is in the conformance suite."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from headway.core.base.errors import ModelFileError, ReplicaNotReady, StartError
from headway.core.messages.health import LoadProgress, ReplicaHello, StepReport
from headway.core.messages.path import Finished
from headway.service.observe.clock import SystemClock
from headway.service.replica.driver import Driver
from headway.service.wire.inproc import InprocTransport, Loop, Send
from headway.service.wire.transport import ReplicaState
from tests.fault.scripted import SECRET, ScriptedEngine, ScriptedExecutor, hello, request


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def build(send: Send) -> tuple[Loop, ReplicaHello]:
    send(LoadProgress(stage="weights", done=1, total=2))
    return Driver(ScriptedEngine(), ScriptedExecutor(), send, SystemClock()), hello(1)


def test_every_step_is_shown_to_the_observer() -> None:
    async def test() -> None:
        reports: list[StepReport] = []
        transport = InprocTransport(build, SystemClock(), reports.append)
        assert transport.view().state is ReplicaState.STARTING
        transport.start()
        await transport.wait_ready()
        mailbox = transport.call(request(max_tokens=2))
        while not isinstance(await mailbox.get(), Finished):
            pass
        await transport.stop()
        assert [report.status.num_steps for report in reports] == [1, 2]

    run(test())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModelFileError("/m.gguf", "is cut short"), "/m.gguf: is cut short"),
        (RuntimeError(SECRET), "the engine ended with RuntimeError; the log has the place"),
    ],
)
def test_an_engine_that_cannot_be_built_is_a_failed_start(error: Exception, told: str) -> None:
    def refuse(send: Send) -> tuple[Loop, ReplicaHello]:
        raise error

    async def test() -> None:
        transport = InprocTransport(refuse, SystemClock())
        transport.start()
        with pytest.raises(StartError) as caught:
            await transport.wait_ready()
        assert caught.value.message == told
        assert transport.view().state is ReplicaState.FAILED
        with pytest.raises(ReplicaNotReady, match="not ready"):
            transport.call(request())
        await transport.stop()
        assert transport.view().state is ReplicaState.STOPPED

    run(test())


def test_stopping_while_it_is_built_ends_the_thread_and_the_waiting() -> None:
    may_go_on = threading.Event()

    def slow(send: Send) -> tuple[Loop, ReplicaHello]:
        may_go_on.wait()
        return build(send)

    async def test() -> None:
        transport = InprocTransport(slow, SystemClock())
        transport.start()
        waiting = asyncio.ensure_future(transport.wait_ready())
        stopping = asyncio.ensure_future(transport.stop())
        with pytest.raises(StartError):
            await waiting
        may_go_on.set()
        await stopping
        assert transport.view().state is ReplicaState.STOPPED
        assert transport.view().hello is None

    run(test())
