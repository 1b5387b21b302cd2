"""Starts one replica, watches it, starts it again when it dies, and ends it."""

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.base.clock import Clock
from headway.core.base.errors import StartError
from headway.core.base.units import Seconds
from headway.core.messages.health import LoadProgress, ReplicaFailed, ReplicaHello, StepReport
from headway.core.messages.path import Cancel, EngineRequest, Submit
from headway.service.control.health import (
    Backoff,
    SupervisorSettings,
    Verdict,
    describe_exit,
    retry_after,
)
from headway.service.control.incarnation import Incarnation
from headway.service.control.subprocess import REPLICA_COMMAND
from headway.service.control.waiting import until_set
from headway.service.wire.lifecycle import Lifecycle
from headway.service.wire.mailbox import Mailboxes, RequestMailbox
from headway.service.wire.spec import ReplicaSpec
from headway.service.wire.transport import ReplicaState, ReplicaView

log = logging.getLogger(__name__)


def _ignore(_: object) -> None:
    """An observer that looks at nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who wants to see what a replica tells; called on the event loop, must not block."""

    on_report: Callable[[StepReport], None] = _ignore  # each step
    on_load: Callable[[LoadProgress], None] = _ignore  # loading goes on
    on_state: Callable[[ReplicaView], None] = _ignore  # the state has changed


class Supervisor:
    """The Transport to one replica in a child process that is kept running.

        supervisor = Supervisor(spec, SupervisorSettings(), clock)
        supervisor.start()
        hello = await supervisor.wait_ready()  # StartError names what is wrong
        ...
        await supervisor.stop()

    A replica that cannot start the first time leaves it FAILED. One that dies later is
    started again for as long as it takes, at growing intervals; requests that it had are
    failed with ReplicaLost at once.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        settings: SupervisorSettings,
        clock: Clock,
        observers: Observers | None = None,
        command: Sequence[str] = REPLICA_COMMAND,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._clock = clock
        self._observers = observers or Observers()
        self._command = command
        self._lifecycle = Lifecycle("starting the engine process", clock.now())
        self._mailboxes = Mailboxes()
        self._life: Incarnation | None = None  # the running process
        self._restarts = Restarts(settings)
        self._stop_wanted = asyncio.Event()
        self._first: asyncio.Future[ReplicaHello | StartError] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to start the replica; returns at once."""
        assert self._task is None, "a supervisor starts once"
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        self._task = loop.create_task(self._run(), name="supervisor")

    async def wait_ready(self) -> ReplicaHello:
        """Wait for the first start; raises StartError with its cause when it failed."""
        assert self._first is not None, "not started"
        outcome = await asyncio.shield(self._first)
        if isinstance(outcome, StartError):
            raise outcome
        return outcome

    async def stop(self) -> None:
        """End the replica, at once if it is loading; returns when no child is left.

        Open mailboxes fail: whoever wants their requests to finish waits for them first.
        """
        self._stop_wanted.set()
        if self._task is not None:
            await self._task
        if self._lifecycle.state is not ReplicaState.STOPPED:
            self._move(ReplicaState.STOPPED, "stopped")

    def view(self) -> ReplicaView:
        """What is known now; never blocks."""
        life, lifecycle = self._life, self._lifecycle
        stalled = life is not None and lifecycle.state is ReplicaState.STALLED
        return ReplicaView(
            state=lifecycle.state,
            reason=life.pulse.explain() if stalled and life else lifecycle.reason,
            since_s=self._clock.now() - lifecycle.since,
            restarts=self._restarts.count,
            retry_after_s=self._retry_after(),
            hello=life.hello if life else None,
            status=life.status if life else None,
        )

    def call(self, request: EngineRequest) -> RequestMailbox:
        """Send a request; raises ReplicaNotReady unless the replica is READY."""
        life = self._life
        if self._lifecycle.state is not ReplicaState.READY or life is None:
            raise self.view().refusal()
        mailbox = self._mailboxes.open(request.id)
        if not life.link.send(Submit(request=request)):
            # It has died, and its process's end is not yet known here.
            self._mailboxes.discard(request.id)
            raise self.view().refusal()
        return mailbox

    def cancel(self, request_id: str) -> None:
        """Have the replica free what the request holds; its mailbox still gets its end."""
        if self._life is not None:
            self._life.link.send(Cancel(request_id=request_id))

    def abandon(self, request_id: str, cause: str) -> None:
        """Another replica goes on with the request: its mailbox fails with ReplicaLost now."""
        self._mailboxes.fail(request_id, cause, self._retry_after())
        self.cancel(request_id)

    def on_hello(self, hello: ReplicaHello, load_s: float) -> None:
        """The process has loaded (called by its Incarnation)."""
        self._restarts.last_load_s = load_s
        log.info("replica_ready", extra=self._about(hello.pid) | {"load_s": load_s})
        self._move(ReplicaState.READY, "ready")
        self._settle(hello)

    def on_load(self, progress: LoadProgress) -> None:
        """The process is loading (called by its Incarnation)."""
        self._lifecycle.explain(f"loading {progress.stage}: {progress.done} of {progress.total}")
        self._observers.on_load(progress)

    def on_report(self, report: StepReport) -> None:
        """The process has done a step (called by its Incarnation)."""
        self._mailboxes.deliver(report.events)
        self._observers.on_report(report)

    def on_failed(self, failure: ReplicaFailed) -> None:
        """The process says that it is ending (called by its Incarnation).

        Its requests fail now: freeing gigabytes may take it a while.
        """
        self._lose(failure.message)

    def _about(self, pid: int) -> dict[str, object]:
        """What log lines say of it: the process and, where there are several, which one it is."""
        named: dict[str, object] = {"replica": self._spec.replica} if self._spec.replica else {}
        return {"pid": pid} | named

    def _retry_after(self) -> Seconds:
        if self._lifecycle.state is ReplicaState.READY:
            return Seconds(1.0)
        return self._restarts.retry_after(self._clock.now() - self._lifecycle.since)

    async def _run(self) -> None:
        """One process after the other, until told to stop or until a first start fails."""
        try:
            with socket_folder() as folder:
                await self._keep_running(folder)
        except StartError as error:
            self._fail(error.message)
        except Exception:
            log.exception("supervisor_failed")
            self._fail("the supervisor of the engine failed; the log has the place")
        finally:
            self._life = None
            self._mailboxes.fail_all("the engine was stopped", self._retry_after())
            self._settle(StartError("stopped before the engine had started"))

    async def _keep_running(self, folder: Path) -> None:
        while not self._stop_wanted.is_set():
            cause = await self._live_once(folder)
            if self._stop_wanted.is_set():
                return
            if not self._has_settled():
                raise StartError(cause)
            await self._pause(cause)

    async def _live_once(self, folder: Path) -> str:
        """Start a process and stay with it to its end; the cause of that end."""
        name = f"replica-{self._restarts.count}"
        try:
            with Incarnation(self._settings, folder, name, self._clock, self) as life:
                life.start(self._command, self._spec)
                self._life = life
                await self._watch(life)
                self._bury(life)
                return await life.cause()
        except StartError as error:
            self._restarts.died(0.0)
            return error.message

    async def _watch(self, life: Incarnation) -> None:
        """Until the process has ended, by itself or because this ended it."""
        stop = asyncio.ensure_future(self._stop_wanted.wait())
        ended = asyncio.ensure_future(life.process.wait())
        try:
            while not ended.done():
                await asyncio.wait(
                    (stop, ended),
                    timeout=self._settings.tick_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if ended.done():
                    break
                if stop.done():
                    await life.end(at_once=self._lifecycle.state is ReplicaState.STALLED)
                    break
                self._look_at(life)
        finally:
            stop.cancel()
            ended.cancel()

    def _look_at(self, life: Incarnation) -> None:
        """Apply the stall rule."""
        if life.failure is not None:
            life.process.kill()  # it has said its last words; what it still does is tidying up
            return
        state, verdict = self._lifecycle.state, life.judge()
        about = self._about(life.process.pid)
        if verdict is Verdict.HOPELESS:
            log.error("replica_hopeless", extra=about | {"why": life.pulse.explain()})
            life.kill()
        elif verdict is Verdict.STALLED and state is ReplicaState.READY:
            log.warning("replica_stalled", extra=about | {"why": life.pulse.explain()})
            self._move(ReplicaState.STALLED, life.pulse.explain())
        elif verdict is Verdict.FINE and state is ReplicaState.STALLED:
            log.info("replica_recovered", extra=about)
            self._move(ReplicaState.READY, "ready")

    def _bury(self, life: Incarnation) -> None:
        """Fail at once what the dead process had; nobody may find it ready from here on."""
        life.link.drain()  # its last steps, if it had sent them
        self._life = None
        code = life.process.exit_code
        assert code is not None, "it has not ended"
        self._restarts.died(life.ready_s())
        self._lose(f"{describe_exit(code)} while it worked on the request")

    def _lose(self, cause: str) -> None:
        """What the process had is lost."""
        if self._stop_wanted.is_set():
            return  # nothing is lost by surprise; `_run` fails what is still open
        if self._lifecycle.state in (ReplicaState.READY, ReplicaState.STALLED):
            self._move(ReplicaState.STARTING, cause)
        self._mailboxes.fail_all(cause, self._retry_after())

    async def _pause(self, cause: str) -> None:
        """Wait before the next start, or until told to stop."""
        delay_s = self._restarts.next()
        about = {"replica": self._spec.replica} if self._spec.replica else {}
        log.error("replica_lost", extra=about | {"cause": cause, "restart_in_s": delay_s})
        self._lifecycle.explain(f"restarting: {cause}")
        await until_set(self._stop_wanted, delay_s)

    def _fail(self, cause: str) -> None:
        self._mailboxes.fail_all(cause, self._retry_after())
        self._move(ReplicaState.FAILED, cause)
        self._settle(StartError(cause))

    def _has_settled(self) -> bool:
        return self._first is not None and self._first.done()

    def _settle(self, outcome: ReplicaHello | StartError) -> None:
        """The first start has ended, well or badly; later ones change nothing."""
        if self._first is not None and not self._first.done():
            self._first.set_result(outcome)

    def _move(self, to: ReplicaState, reason: str) -> None:
        self._lifecycle.move(to, reason, self._clock.now())
        self._observers.on_state(self.view())


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A fresh folder that only we may enter, gone afterwards; raises StartError."""
    try:
        folder = tempfile.mkdtemp(prefix="headway-")  # mode 0700
    except OSError as error:
        raise StartError(
            f"cannot make a folder for sockets: {error}; "
            f"set TMPDIR to a folder that can be written to"
        ) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Restarts:
    """How often it was started again, how long the pause is, how long a load takes."""

    __slots__ = ("_backoff", "_delay_s", "count", "last_load_s")

    def __init__(self, settings: SupervisorSettings) -> None:
        self._backoff = Backoff(settings)
        self._delay_s = 0.0
        self.count = 0
        self.last_load_s: float | None = None

    def died(self, ready_s: float) -> None:
        """Decide on the pause before the next start."""
        self._delay_s = self._backoff.after_death(ready_s)

    def next(self) -> float:
        """Count a restart; the seconds to wait before it."""
        self.count += 1
        return self._delay_s

    def retry_after(self, waited_s: float) -> Seconds:
        """What to tell clients, waited_s after the death or the first start."""
        return retry_after(self.last_load_s, waited_s, self._delay_s)
