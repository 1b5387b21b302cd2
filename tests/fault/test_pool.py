"""A pool over real processes: loaded when wanted, unloaded when idle, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psutil
import pytest

from headway.core.base.errors import ReplicaLost, ReplicaNotReady, StartError
from headway.core.base.units import Seconds
from headway.core.fleet.residency import LoadWhen, ResidencySettings, Stage
from headway.core.messages.path import Finished, FinishReason, Tokens
from headway.service.control.pool import ModelPool
from headway.service.control.supervise import Observers, Supervisor
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import Mailbox, ReplicaState
from tests.fault.processes import QUICK, children, command, make_child_importable, until
from tests.fault.scripted import SPEC, request

LONG = 80  # tokens of an answer that is still under way when something happens
STEP_S = 0.02


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_child_importable(monkeypatch.setenv)


@asynccontextmanager
async def pooled(
    load: str = LoadWhen.DEMAND,
    *,
    idle: float = 0.0,
    wait: float | None = 30.0,
    mode: Callable[[], str] = lambda: "run",
    alone: bool = True,
) -> AsyncIterator[ModelPool]:
    """A pool that has been started; afterwards no child is left, unless it was not alone."""

    def make(observers: Observers) -> Supervisor:
        return Supervisor(SPEC, QUICK, SystemClock(), observers, command(mode(), STEP_S))

    residency = ResidencySettings(load=load, idle_unload=idle, load_wait=wait)
    pool = ModelPool("m", residency, make, SystemClock())
    pool.start()
    try:
        yield pool
    finally:
        await pool.stop()
        await until(lambda: not (alone and children()), "no child is left")


async def text_of(box: Mailbox) -> tuple[str, FinishReason]:
    """The whole answer, and how it ended."""
    text = ""
    while not isinstance(event := await box.get(), Finished):
        if isinstance(event, Tokens):
            text += event.text
    return text, event.reason


async def answer(pool: ModelPool, name: str, tokens: int = 3) -> tuple[str, FinishReason]:
    """One request, from its wait to its end."""
    try:
        await pool.hold(name, None)
        return await text_of(pool.call(request(name, max_tokens=tokens)))
    finally:
        pool.release(name)


def counted(tokens: int) -> tuple[str, FinishReason]:
    """What a scripted engine answers when nothing is lost and nothing comes twice."""
    return "".join(f"{number} " for number in range(1, tokens + 1)), FinishReason.LENGTH


def test_a_model_on_demand_has_no_process_until_a_request_that_it_then_answers() -> None:
    async def scenario() -> None:
        async with pooled() as pool:
            await pool.wait_ready()
            assert pool.view().state is ReplicaState.UNLOADED
            assert children() == []
            assert await answer(pool, "r1") == counted(3)
            assert len(children()) == 1
            assert pool.residency().counts.loads == 1

    asyncio.run(scenario())


def test_many_requests_at_once_cause_one_load_and_all_are_answered() -> None:
    async def scenario() -> None:
        async with pooled() as pool:
            answers = await asyncio.gather(*(answer(pool, f"r{i}") for i in range(8)))
            assert set(answers) == {counted(3)}
            assert pool.residency().counts.loads == 1

    asyncio.run(scenario())


def test_an_idle_model_is_unloaded_and_comes_back_for_the_next_request() -> None:
    async def scenario() -> None:
        async with pooled(idle=0.2) as pool:
            for number in (1, 2, 3):
                assert await answer(pool, f"r{number}") == counted(3)
                await until(lambda: pool.view().state is ReplicaState.UNLOADED, "it is unloaded")
                assert children() == []
                assert pool.residency().counts.unloads == number
            assert pool.view().loads == 3

    asyncio.run(scenario())


def test_a_model_is_not_idle_while_an_answer_is_under_way() -> None:
    async def scenario() -> None:
        async with pooled(idle=0.05) as pool:
            assert await answer(pool, "long", LONG) == counted(LONG)  # for 32 idle times
            assert pool.residency().counts.unloads == 0

    asyncio.run(scenario())


def test_draining_lets_what_runs_end_and_what_comes_waits_for_the_next_load() -> None:
    async def scenario() -> None:
        async with pooled(LoadWhen.START) as pool:
            await pool.wait_ready()
            old = asyncio.create_task(answer(pool, "old", LONG))
            await until(lambda: pool.residency().num_running == 1, "the request runs")
            (before,) = children()
            draining = asyncio.create_task(pool.drain())
            await until(lambda: pool.view().state is ReplicaState.UNLOADING, "it drains")
            new = asyncio.create_task(answer(pool, "new"))
            assert await old == counted(LONG)
            await draining
            assert not before.is_running()
            assert await new == counted(3)
            (after,) = children()
            assert after.pid != before.pid

    asyncio.run(scenario())


def test_an_engine_that_is_killed_comes_back_and_who_waits_is_answered() -> None:
    async def scenario() -> None:
        async with pooled(LoadWhen.START) as pool:
            await pool.wait_ready()
            lost = asyncio.create_task(answer(pool, "lost", LONG))
            await until(lambda: pool.residency().num_running == 1, "the request runs")
            children()[0].kill()
            with pytest.raises(ReplicaLost):
                await lost
            assert await answer(pool, "next") == counted(3)
            view = pool.view()
            assert (view.restarts, view.loads) == (1, 1)

    asyncio.run(scenario())


def test_without_patience_a_request_is_told_at_once_to_come_again() -> None:
    async def scenario() -> None:
        async with pooled(wait=0.0) as pool:
            with pytest.raises(ReplicaNotReady) as caught:
                await pool.hold("r1", None)
            pool.release("r1")
            assert caught.value.retry_after_s == 5.0  # no load has been measured yet
            await until(lambda: pool.view().state is ReplicaState.READY, "it has loaded anyway")
            assert await answer(pool, "r2") == counted(3)

    asyncio.run(scenario())


def test_a_promise_shorter_than_the_measured_load_is_refused_at_once_with_its_time() -> None:
    async def scenario() -> None:
        async with pooled() as pool:
            await answer(pool, "r1")
            took_s = pool.residency().counts.last_load_s
            assert took_s is not None
            pool.residency().counts.last_load_s = 100.0  # as if the machine were slow
            await pool.drain()
            clock = SystemClock()
            began = clock.now()
            with pytest.raises(ReplicaNotReady) as caught:
                await pool.hold("r2", 20.0)
            pool.release("r2")
            assert clock.now() - began < 10.0
            assert 99.0 < caught.value.retry_after_s <= 100.0

    asyncio.run(scenario())


def test_a_load_that_fails_is_told_to_all_who_wait_and_the_next_may_work() -> None:
    async def scenario() -> None:
        modes = iter(["refuse", "run"])
        async with pooled(mode=lambda: next(modes)) as pool:
            waiting = [asyncio.create_task(answer(pool, f"r{i}")) for i in range(3)]
            for each in waiting:
                with pytest.raises(ReplicaNotReady) as caught:
                    await each
                assert caught.value.retry_after_s > 1.0
            assert pool.view().state is ReplicaState.FAILED
            with pytest.raises(ReplicaNotReady):
                await pool.hold("soon", None)
            pool.release("soon")
            residency = pool.residency()
            assert residency.stage is Stage.FAILED
            residency.since = Seconds(residency.since - 1000.0)  # the pause is over
            assert await answer(pool, "later") == counted(3)
            assert (residency.counts.failed_loads, residency.counts.loads) == (1, 1)

    asyncio.run(scenario())


def test_a_model_of_the_start_that_cannot_load_says_why() -> None:
    async def scenario() -> None:
        async with pooled(LoadWhen.START, mode=lambda: "refuse") as pool:
            with pytest.raises(StartError):
                await pool.wait_ready()

    asyncio.run(scenario())


def test_a_model_that_hangs_while_it_loads_does_not_touch_the_other() -> None:
    async def scenario() -> None:
        async with pooled(mode=lambda: "hang") as slow, pooled(alone=False) as other:
            waits = asyncio.create_task(answer(slow, "w"))
            await until(lambda: slow.view().state is ReplicaState.STARTING, "it loads")
            assert await answer(other, "r1") == counted(3)
            assert not waits.done()
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert slow.residency().num_waiting == 0

    asyncio.run(scenario())


def test_stopping_ends_the_process_in_every_stage() -> None:
    others = set(psutil.Process().children())  # the session's own Redis or PostgreSQL

    async def scenario() -> None:
        async with pooled(mode=lambda: "hang") as loading:
            asked = asyncio.create_task(answer(loading, "r"))
            await until(lambda: bool(children()), "it loads")
            await loading.stop()
            with pytest.raises(ReplicaNotReady):
                await asked
        async with pooled(LoadWhen.START, idle=0.01) as leaving:
            await leaving.wait_ready()
            await until(lambda: leaving.view().state is not ReplicaState.READY, "it goes")
            await leaving.stop()
        assert others.issuperset(psutil.Process().children())

    asyncio.run(scenario())
