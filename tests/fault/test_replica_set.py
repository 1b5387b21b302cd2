"""Several replicas in real processes: killed and stopped mid-stream, and nobody notices."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from headway.core.base.errors import ReplicaLost, StartError
from headway.core.fleet.residency import LoadWhen, ResidencySettings
from headway.core.messages.path import Event, Finished, FinishReason, Started, Tokens
from headway.service.control.failover import LastingMailbox
from headway.service.control.pool import ModelPool
from headway.service.control.replica_set import ReplicaSet, ReplicaSetSettings, by_load
from headway.service.control.supervise import Observers
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import Mailbox, ReplicaState
from tests.fault.processes import (
    STRICT,
    children,
    member_pid,
    replica_set,
    scripted_member,
    until,
    until_all_ready,
)
from tests.fault.scripted import request


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


def sent(replicas: ReplicaSet, name: str, tokens: int) -> LastingMailbox:
    box = replicas.call(request(name, max_tokens=tokens))
    assert isinstance(box, LastingMailbox)
    return box


async def rest_of(box: Mailbox, events: list[Event] | None = None) -> list[Event]:
    events = events if events is not None else []
    while not events or not isinstance(events[-1], Finished):
        events.append(await box.get())
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Tokens))


def counted(tokens: int) -> str:
    """What a scripted engine says when nothing is lost and nothing comes twice."""
    return "".join(f"{number} " for number in range(1, tokens + 1))


def check_whole(events: list[Event], tokens: int) -> Finished:
    """One start, every token once, one end, one usage."""
    assert text_of(events) == counted(tokens)
    assert [type(e) for e in events if not isinstance(e, Tokens)] == [Started, Finished]
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (1, tokens)
    return end


@pytest.mark.spec("M2")
def test_streams_survive_ten_kills_of_the_replica_that_they_are_at() -> None:
    async def test() -> None:
        async with replica_set(scripted_member(step_s=0.002)) as replicas:
            kill = 0
            for attempt in range(100):
                await until_all_ready(replicas)
                boxes = [sent(replicas, f"{attempt}-{each}", 40) for each in range(4)]
                first: list[Event] = []
                while sum(isinstance(event, Tokens) for event in first) <= kill:
                    first.append(await boxes[0].get())
                os.kill(member_pid(replicas, boxes[0].replica), signal.SIGKILL)
                whole = await asyncio.gather(
                    rest_of(boxes[0], first), *(rest_of(box) for box in boxes[1:])
                )
                ends = [check_whole(events, 40) for events in whole]
                assert {end.failovers for end in ends} <= {0, 1}
                kill += ends[0].failovers  # on a busy machine it may have ended before the kill
                if kill == 10:
                    break
            assert kill == 10
            view = replicas.view()
            assert view.routed is not None
            assert view.routed.broken == 0
            assert view.restarts >= 9

    run(test())


@pytest.mark.spec("J5")
def test_keepalive_timeouts_02_a_stopped_replica_loses_no_request() -> None:
    """The variant of a SIGSTOPped worker, with 20 requests, some of which have not begun."""

    async def test() -> None:
        async with replica_set(scripted_member(0.01, STRICT)) as replicas:
            boxes = [sent(replicas, f"r{each}", 30) for each in range(10)]
            readers = [asyncio.ensure_future(rest_of(box)) for box in boxes]
            await until(lambda: all(box.has_begun for box in boxes), "all stream")
            pid = member_pid(replicas, "0")
            os.kill(pid, signal.SIGSTOP)
            try:
                stopped = time.monotonic()
                late = [sent(replicas, f"late{each}", 5) for each in range(6)]
                assert "0" in {box.replica for box in late}, "nobody knows yet"
                readers += [asyncio.ensure_future(rest_of(box)) for box in late]
                whole = await asyncio.gather(*readers)
                # Documented: the stall limit and a tick; the rest is this machine's load.
                assert time.monotonic() - stopped < STRICT.kill_after_s / 2
                for number, events in enumerate(whole):
                    check_whole(events, 30 if number < 10 else 5)
                view = replicas.view()
                assert view.state is ReplicaState.READY
                assert "1 of 2 replicas are ready; replica 0: no sign of life" in view.reason
            finally:
                os.kill(pid, signal.SIGCONT)
            await until_all_ready(replicas)
            assert member_pid(replicas, "0") == pid, "it was not restarted"
            await until(
                lambda: [member.in_flight for member in replicas.view().members] == [0, 0],
                "it has freed what the others went on with",
            )

    run(test())


@pytest.mark.spec("J5")
def test_gateway_health_01_a_dead_replica_is_out_at_once_and_comes_back() -> None:
    async def test() -> None:
        async with replica_set(scripted_member()) as replicas:
            os.kill(member_pid(replicas, "0"), signal.SIGKILL)
            for number in range(20):
                check_whole(await rest_of(sent(replicas, f"r{number}", 3)), 3)
            await until_all_ready(replicas)
            used = set()
            for number in range(20):
                box = sent(replicas, f"again{number}", 3)
                check_whole(await rest_of(box), 3)
                used.add(box.replica)
            assert used == {"0", "1"}

    run(test())


def test_a_set_in_a_pool_is_loaded_on_demand_and_unloaded_with_all_its_processes() -> None:
    async def test() -> None:
        def make(observers: Observers) -> ReplicaSet:
            settings = ReplicaSetSettings(replicas=3)
            return ReplicaSet(settings, scripted_member(), by_load, SystemClock(), observers)

        pool = ModelPool("m", ResidencySettings(load=LoadWhen.DEMAND), make, SystemClock())
        pool.start()
        try:
            await pool.wait_ready()
            assert children() == []
            assert await pool.hold("r", None) > 0.0
            assert len(children()) == 3
            check_whole(await rest_of(pool.call(request("r", max_tokens=4))), 4)
            pool.release("r")
            await pool.drain()
            assert children() == []
            assert pool.view().state is ReplicaState.UNLOADED
        finally:
            await pool.stop()

    run(test())


def test_startup_config_01_a_set_that_cannot_start_names_the_cause_and_leaves_nothing() -> None:
    async def test() -> None:
        with pytest.raises(StartError, match=r"replica 0: .*tensor output.weight is cut short"):
            async with replica_set(scripted_member(mode="refuse")):
                pytest.fail("it is ready")

    run(test())


def test_a_stream_of_which_no_replica_is_left_ends_with_an_error_after_its_wait() -> None:
    async def test() -> None:
        settings = ReplicaSetSettings(replicas=2, failover_wait_s=0.0)
        async with replica_set(scripted_member(step_s=0.01), settings) as replicas:
            box = sent(replicas, "r", 10**6)
            await box.get()
            pids = [member_pid(replicas, name) for name in ("0", "1")]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(ReplicaLost, match="SIGKILL"):
                await rest_of(box)
            assert replicas.view().routed is not None

    run(test())
