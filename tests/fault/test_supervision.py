"""A supervisor over real processes: deaths, stalls, failed starts, and nothing left behind."""

import asyncio
import contextlib
import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import uvloop

from headway.core.base.errors import ReplicaLost, ReplicaNotReady, StartError
from headway.core.messages.health import LoadProgress, StepReport
from headway.core.messages.path import Finished, FinishReason, Started, Tokens
from headway.service.control.supervise import Observers, Supervisor
from headway.service.observe.clock import SystemClock
from headway.service.wire.transport import Mailbox, ReplicaState, ReplicaView
from tests.fault.processes import (
    CHILD,
    DEADLINE_S,
    QUICK,
    ROOT,
    STRICT,
    children,
    pid_of,
    supervised,
    until,
    until_state,
)
from tests.fault.scripted import CRASH, HANG, SECRET, SPEC, request

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(test: Coroutine[Any, Any, None], loop: LoopFactory = asyncio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(test, 2 * DEADLINE_S))


async def streaming(supervisor: Supervisor, request_id: str = "r1") -> Mailbox:
    """A request without end that has begun to answer."""
    mailbox = supervisor.call(request(request_id, max_tokens=10**9))
    assert isinstance(await mailbox.get(), Started)
    assert isinstance(await mailbox.get(), Tokens)
    return mailbox


async def read_to_failure(mailbox: Mailbox) -> ReplicaLost:
    """Read on until the mailbox fails."""
    while True:
        try:
            await mailbox.get()
        except ReplicaLost as error:
            return error


async def answers(supervisor: Supervisor) -> None:
    """A whole request goes through."""
    mailbox = supervisor.call(request("whole", max_tokens=2))
    while not isinstance(event := await mailbox.get(), Finished):
        pass
    assert event.reason is FinishReason.LENGTH


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_gateway_health_01_a_killed_engine_fails_its_requests_at_once_and_comes_back(
    loop: LoopFactory,
) -> None:
    async def test() -> None:
        async with supervised(step_s=0.002) as supervisor:
            await supervisor.wait_ready()
            first = pid_of(supervisor)
            boxes = [await streaming(supervisor, name) for name in ("a", "b")]
            os.kill(first, signal.SIGKILL)
            killed = time.monotonic()
            for mailbox in boxes:
                error = await read_to_failure(mailbox)
                assert "SIGKILL" in error.message
                assert error.retry_after_s >= 1.0
            assert time.monotonic() - killed < QUICK.stall_after_s / 2, (
                "at once, not by its silence"
            )
            assert supervisor.view().state is ReplicaState.STARTING
            assert supervisor.view().hello is None
            with pytest.raises(ReplicaNotReady) as caught:
                supervisor.call(request("too early"))
            assert caught.value.retry_after_s >= 1.0
            await until_state(supervisor, ReplicaState.READY)
            assert pid_of(supervisor) != first
            assert supervisor.view().restarts == 1
            await answers(supervisor)

    run(test(), loop)


def test_gateway_health_01_a_stopped_engine_with_work_is_stalled_and_recovers() -> None:
    async def test() -> None:
        async with supervised(step_s=0.002, settings=STRICT) as supervisor:
            await supervisor.wait_ready()
            pid = pid_of(supervisor)
            mailbox = await streaming(supervisor)
            os.kill(pid, signal.SIGSTOP)
            try:
                stopped = time.monotonic()
                view = await until_state(supervisor, ReplicaState.STALLED)
                # Documented: within the limit and a tick; the rest is this machine's load.
                assert time.monotonic() - stopped < STRICT.kill_after_s / 2
                assert "no sign of life" in view.reason
                with pytest.raises(ReplicaNotReady):
                    supervisor.call(request("refused"))
            finally:
                os.kill(pid, signal.SIGCONT)
            await until_state(supervisor, ReplicaState.READY)
            assert pid_of(supervisor) == pid, "it was not restarted"
            assert isinstance(await mailbox.get(), Tokens), "the stream goes on"
            await answers(supervisor)

    run(test())


def test_gateway_health_01_a_step_that_never_ends_is_a_stall_although_the_process_lives() -> None:
    async def test() -> None:
        async with supervised(settings=STRICT) as supervisor:
            await supervisor.wait_ready()
            mailbox = supervisor.call(request(order=HANG))
            view = await until_state(supervisor, ReplicaState.STALLED)
            assert "no step has completed" in view.reason
            await supervisor.stop()
            await read_to_failure(mailbox)

    run(test())


def test_gateway_health_01_an_engine_stalled_for_too_long_is_killed_and_started_again() -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(STRICT, kill_after_s=0.5)
        async with supervised(settings=settings) as supervisor:
            await supervisor.wait_ready()
            first = pid_of(supervisor)
            error = await read_to_failure(supervisor.call(request(order=HANG)))
            assert "SIGKILL" in error.message
            await until_state(supervisor, ReplicaState.READY)
            assert pid_of(supervisor) != first
            await answers(supervisor)

    run(test())


def test_gateway_health_01_an_idle_engine_is_never_called_stalled() -> None:
    async def test() -> None:
        seen: list[ReplicaView] = []
        observers = Observers(on_state=seen.append)
        settings = msgspec.structs.replace(STRICT, stall_after_s=2.0)
        async with supervised(settings=settings, observers=observers) as supervisor:
            await supervisor.wait_ready()
            await answers(supervisor)
            idle_since = time.monotonic()
            # For longer than the limit, with nothing to do.
            await until(lambda: time.monotonic() - idle_since > 4.5, "it has idled for long")
            assert [view.state for view in seen] == [ReplicaState.READY]
            assert supervisor.view().restarts == 0
            await answers(supervisor)

    run(test())


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("refuse", "/nowhere/scripted.gguf: tensor output.weight is cut short"),
        ("raise", "RuntimeError while loading, at tests/fault/child.py"),
        ("die", "killed by signal SIGKILL (out of memory?"),
        ("exit", "exited with code 7"),
    ],
)
def test_startup_config_01_a_failed_first_start_names_its_cause(mode: str, cause: str) -> None:
    async def test() -> None:
        states: list[ReplicaState] = []
        observers = Observers(on_state=lambda view: states.append(view.state))
        async with supervised(mode, observers=observers) as supervisor:
            with pytest.raises(StartError) as caught:
                await asyncio.wait_for(supervisor.wait_ready(), DEADLINE_S)
            assert cause in caught.value.message
            assert SECRET not in caught.value.message
            assert supervisor.view().state is ReplicaState.FAILED
            assert cause in supervisor.view().reason
            with pytest.raises(ReplicaNotReady):
                supervisor.call(request())
            await until(lambda: not children(), "no child is left, and none is started again")
            assert states == [ReplicaState.FAILED], "it was never ready"

    run(test())


def test_startup_config_01_a_program_that_is_not_there_is_a_failed_start() -> None:
    async def test() -> None:
        supervisor = Supervisor(SPEC, QUICK, SystemClock(), None, ("/nowhere/python",))
        supervisor.start()
        with pytest.raises(StartError, match="cannot start /nowhere/python: No such file"):
            await supervisor.wait_ready()
        await supervisor.stop()

    run(test())


def test_security_logs_01_a_crash_in_a_step_is_told_by_type_and_place_alone(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The child shares our stderr, so what it wrote is captured with ours."""

    async def test() -> None:
        async with supervised(step_s=0.002) as supervisor:
            await supervisor.wait_ready()
            first, other = pid_of(supervisor), await streaming(supervisor)
            crashing = supervisor.call(request("crash", order=CRASH))
            for mailbox in (crashing, other):
                error = await read_to_failure(mailbox)
                assert "RuntimeError while running, at tests/fault/scripted.py" in error.message
                assert SECRET not in error.message
            assert supervisor.view().state is ReplicaState.STARTING
            await until_state(supervisor, ReplicaState.READY)
            assert pid_of(supervisor) != first
            await answers(supervisor)

    gc.collect()  # which may write of what earlier tests have left
    capfd.readouterr()
    caplog.clear()
    run(test())
    said = capfd.readouterr().err
    assert "replica_failed exception=RuntimeError" in said
    assert SECRET not in said + caplog.text
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("folder", "cause"),
    [
        ("/nowhere", "cannot make a folder for sockets: [Errno 2] No such file"),
        ("/tmp/" + "x" * 100, "is over 107 bytes; set TMPDIR to a folder with a shorter name"),
    ],
)
def test_startup_config_01_a_temporary_folder_that_cannot_be_used_is_named(
    folder: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    with contextlib.ExitStack() as made:
        if folder != "/nowhere":
            Path(folder).mkdir()
            made.callback(Path(folder).rmdir)  # which fails if anything is left in it

        async def test() -> None:
            async with supervised() as supervisor:
                with pytest.raises(StartError) as caught:
                    await supervisor.wait_ready()
                assert cause in caught.value.message

        run(test())


def test_a_replica_that_cannot_start_again_is_tried_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "was-here"
    monkeypatch.setenv("MARK", str(mark))

    async def test() -> None:
        async with supervised("once") as supervisor:
            await supervisor.wait_ready()
            os.kill(pid_of(supervisor), signal.SIGKILL)
            await until(lambda: supervisor.view().restarts >= 3, "it was tried three times")
            assert supervisor.view().state is ReplicaState.STARTING
            mark.unlink()  # what was missing is there again
            await until_state(supervisor, ReplicaState.READY)
            await answers(supervisor)

    run(test())


def test_loading_is_reported_and_seen_by_observers() -> None:
    async def test() -> None:
        loads: list[LoadProgress] = []
        reports: list[StepReport] = []
        observers = Observers(on_load=loads.append, on_report=reports.append)
        async with supervised(observers=observers) as supervisor:
            await supervisor.wait_ready()
            await answers(supervisor)
        assert loads == [LoadProgress(stage="weights", done=1, total=2)]
        assert [len(report.events) for report in reports] == [2, 2]  # one message a step

    run(test())


def test_stopping_while_it_loads_does_not_wait_for_the_load() -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, stop_grace_s=30.0)
        async with supervised("hang", settings=settings) as supervisor:
            await until(lambda: "weights" in supervisor.view().reason, "it loads")
            began = time.monotonic()
            await supervisor.stop()
            assert time.monotonic() - began < settings.stop_grace_s
            with pytest.raises(StartError):
                await supervisor.wait_ready()

    run(test())


def test_a_replica_that_ignores_stop_and_sigterm_is_killed() -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, stop_grace_s=0.2)
        async with supervised("deaf", settings=settings) as supervisor:
            await supervisor.wait_ready()
            pid = pid_of(supervisor)
            await supervisor.stop()
            assert not psutil.pid_exists(pid)

    run(test())


def test_sigterm_to_every_process_leaves_the_running_engine_to_its_server() -> None:
    async def test() -> None:
        async with supervised(step_s=0.2) as supervisor:
            await supervisor.wait_ready()
            mailbox = supervisor.call(request("r", max_tokens=3))
            os.kill(pid_of(supervisor), signal.SIGTERM)
            while not isinstance(event := await mailbox.get(), Finished):
                pass
            assert event.reason is not FinishReason.ERROR
            assert supervisor.view().restarts == 0

    run(test())


def test_stopping_between_two_starts_does_not_wait_for_the_next() -> None:
    async def test() -> None:
        settings = msgspec.structs.replace(QUICK, backoff_first_s=600.0, backoff_limit_s=600.0)
        async with supervised(settings=settings) as supervisor:
            await supervisor.wait_ready()
            os.kill(pid_of(supervisor), signal.SIGKILL)
            view = await until_state(supervisor, ReplicaState.STARTING)
            assert view.retry_after_s > 500.0

    run(test())


def test_the_child_ends_and_tidies_up_when_its_server_is_killed(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a step hangs: its server cannot ask it to end any more."""
    monkeypatch.setenv("TMPDIR", str(short_folder))
    server = subprocess.Popen(
        [sys.executable, str(CHILD.with_name("doomed_server.py"))],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert server.stdout is not None
        with server.stdout as lines:
            child = psutil.Process(int(lines.readline()))
        assert child.ppid() == server.pid
        assert len(list(short_folder.iterdir())) == 1
        server.kill()
        server.wait()
        run(until_gone(child))
        assert list(short_folder.iterdir()) == []
    finally:
        server.kill()
        server.wait()


async def until_gone(process: psutil.Process) -> None:
    await until(lambda: has_ended(process), "the orphan has ended")


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_sockets_are_the_owners_alone_and_gone_afterwards(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))

    async def test() -> None:
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            [inside] = short_folder.iterdir()
            assert stat.S_IMODE(inside.stat().st_mode) == 0o700
            modes = [stat.S_IMODE(path.stat().st_mode) for path in inside.iterdir()]
            assert modes == [0o600, 0o600]

    run(test())
    assert list(short_folder.iterdir()) == []
