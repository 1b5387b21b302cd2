"""Starting scripted replicas as real processes, and waiting for facts about them."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from headway.service.control.health import SupervisorSettings
from headway.service.control.supervise import Observers, Supervisor
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import ReplicaState, ReplicaView
from tests.fault.scripted import SPEC

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("child.py")
DEADLINE_S = 30.0  # only ever reached by a test that fails
POLL_S = 0.01

# Short limits, each far above what a loaded machine needs to get a thread to run.
QUICK = SupervisorSettings(
    heartbeat_s=0.05,
    tick_s=0.05,
    stall_after_s=1.0,
    kill_after_s=60.0,
    load_silence_s=60.0,
    backoff_first_s=0.05,
    backoff_limit_s=0.2,
    stop_grace_s=5.0,
)


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


def children() -> list[psutil.Process]:
    """Processes that this one has started and that still run."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


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
