"""Starting scripted replicas as real processes, and waiting for facts about them."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil

from headway.service.control.health import SupervisorSettings
from headway.service.control.replica_set import (
    MakeMember,
    ReplicaSet,
    ReplicaSetSettings,
    by_prefix,
)
from headway.service.control.supervise import Observers, Supervisor
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import ReplicaState, ReplicaView
from tests.fault.scripted import SPEC

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("child.py")
DEADLINE_S = 90.0  # only ever reached by a test that fails
POLL_S = 0.01

# Quick to look and to restart; as patient as by default with a loaded machine.
QUICK = SupervisorSettings(
    heartbeat_s=0.05,
    tick_s=0.05,
    backoff_first_s=0.05,
    backoff_limit_s=0.2,
    stop_grace_s=5.0,
)
# For tests of the stall rule.
STRICT = msgspec.structs.replace(QUICK, stall_after_s=1.0)


def make_child_importable(setenv: Callable[[str, str], None]) -> None:
    """Let a child that is started by its path import this repository."""
    setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def command(mode: str, step_s: float = 0.0) -> tuple[str, ...]:
    """How to start the scripted child."""
    return (sys.executable, str(CHILD), mode, str(step_s))


@asynccontextmanager
async def supervised(
    mode: str = "run",
    *,
    step_s: float = 0.0,
    settings: SupervisorSettings = QUICK,
    observers: Observers | None = None,
) -> AsyncIterator[Supervisor]:
    """A supervisor that has been started, and is stopped whatever happens."""
    supervisor = Supervisor(SPEC, settings, SystemClock(), observers, command(mode, step_s))
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
        assert supervisor.view().state is ReplicaState.STOPPED
        await until(lambda: not children(), "no child is left")


def scripted_member(
    step_s: float = 0.0, settings: SupervisorSettings = QUICK, mode: str = "run"
) -> MakeMember:
    """How a set makes one scripted replica."""

    def make(name: str, observers: Observers) -> Supervisor:
        spec = msgspec.structs.replace(SPEC, replica=name)
        return Supervisor(spec, settings, SystemClock(), observers, command(mode, step_s))

    return make


@asynccontextmanager
async def replica_set(
    make: MakeMember, settings: ReplicaSetSettings | None = None
) -> AsyncIterator[ReplicaSet]:
    """Replicas that have loaded, and are stopped whatever happens."""
    settings = settings or ReplicaSetSettings(replicas=2)
    replicas = ReplicaSet(settings, make, by_prefix("m", 1.5), SystemClock())
    replicas.start()
    try:
        await replicas.wait_ready()
        yield replicas
    finally:
        await replicas.stop()
        await until(lambda: not children(), "no child is left")


async def until_all_ready(replicas: ReplicaSet) -> None:
    """Poll until every replica of the set can answer."""
    await until(
        lambda: all(m.view.state is ReplicaState.READY for m in replicas.view().members),
        "all replicas are ready",
    )


def member_pid(replicas: ReplicaSet, name: str) -> int:
    """Process id of one replica of the set."""
    hello = replicas.view().members[int(name)].view.hello
    assert hello is not None, f"replica {name} has not loaded"
    return hello.pid


def children() -> list[psutil.Process]:
    """Replicas that this process has started and that still run."""
    return [child for child in psutil.Process().children() if is_running_replica(child)]


def is_running_replica(process: psutil.Process) -> bool:
    """False for other processes, and once it has ended."""
    try:
        line = process.cmdline()  # empty for one that has ended and is not yet waited for
    except psutil.NoSuchProcess:
        return False
    return str(CHILD) in line or "headway.app.replica" in line


def pid_of(supervisor: Supervisor) -> int:
    """Process id of the replica that has loaded."""
    hello = supervisor.view().hello
    assert hello is not None, supervisor.view().reason
    return hello.pid


async def until(fact: Callable[[], bool], what: str) -> float:
    """Poll until it is so; the seconds that took. Fails after DEADLINE_S."""
    start = time.monotonic()
    while not fact():
        assert time.monotonic() - start < DEADLINE_S, f"waited {DEADLINE_S} s until {what}"
        await asyncio.sleep(POLL_S)
    return time.monotonic() - start


async def until_state(supervisor: Supervisor, state: ReplicaState) -> ReplicaView:
    """Poll until the replica is in a state; its view then."""
    await until(lambda: supervisor.view().state is state, f"the replica is {state.value}")
    return supervisor.view()
