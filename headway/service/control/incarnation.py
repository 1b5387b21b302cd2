"""One life of a replica: a process, its link, its pulse and what it said of itself."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from headway.core.base.clock import Clock
from headway.core.base.units import Seconds
from headway.core.messages.health import (
    Heartbeat,
    LoadProgress,
    ReplicaFailed,
    ReplicaHello,
    ReplicaStatus,
    Report,
    StepReport,
)
from headway.core.messages.path import Stop
from headway.service.control.health import Pulse, SupervisorSettings, Verdict, describe_exit
from headway.service.control.subprocess import ReplicaProcess
from headway.service.wire.spec import Launch, ReplicaSpec
from headway.service.wire.zmq import ServerLink

log = logging.getLogger(__name__)

LAST_WORDS_S = 0.5  # how long after an exit its last message may still be under way
POLL_S = 0.01


class Listener(Protocol):
    """Who hears what a replica tells; called on the event loop."""

    def on_hello(self, hello: ReplicaHello, load_s: float) -> None:
        """It has loaded; load_s is since the start of its process."""
        ...

    def on_load(self, progress: LoadProgress) -> None:
        """It is loading."""
        ...

    def on_failed(self, failure: ReplicaFailed) -> None:
        """It cannot start, or its loop has failed; its process ends next."""
        ...

    def on_report(self, report: StepReport) -> None:
        """It has done a step, or refused or cancelled requests between two steps."""
        ...


class Incarnation:
    """Starts a replica's process and hears it; as a context, leaves no process and no socket."""

    def __init__(
        self,
        settings: SupervisorSettings,
        folder: Path,
        name: str,
        clock: Clock,
        listener: Listener,
    ) -> None:
        """Bind the sockets `name`-... in `folder`; raises StartError."""
        self._settings = settings
        self._clock = clock
        self._listener = listener
        self._started = clock.now()
        self._process: ReplicaProcess | None = None
        self._killed_for: str | None = None
        self.failure: ReplicaFailed | None = None
        self._ready_since: Seconds | None = None
        self.link = ServerLink(folder, name)
        self.pulse = Pulse(settings, self._started)
        self.hello: ReplicaHello | None = None
        self.status: ReplicaStatus | None = None

    def __enter__(self) -> "Incarnation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.exit_code is None:
            self._process.kill()
        self.link.close()

    def start(self, command: Sequence[str], spec: ReplicaSpec) -> None:
        """Start the process and listen to it; raises StartError."""
        self.link.listen(self._take)
        launch = Launch(
            spec=spec,
            commands_address=self.link.commands_address,
            reports_address=self.link.reports_address,
            heartbeat_s=self._settings.heartbeat_s,
        )
        self._process = ReplicaProcess(command, launch)

    @property
    def process(self) -> ReplicaProcess:
        """The process, after `start`."""
        assert self._process is not None, "not started"
        return self._process

    def ready_s(self) -> float:
        """Seconds since it had loaded; 0 when it never had."""
        return 0.0 if self._ready_since is None else self._clock.now() - self._ready_since

    def judge(self) -> Verdict:
        """Whether it is fine; a look that counts, to be made once a tick.

        While it loads there is no step to wait for, and one call into a library may keep its
        threads quiet for long: only a much longer silence counts then.
        """
        verdict = self.pulse.tick(self._clock.now())
        if self.hello is not None:
            return verdict
        lost = self.pulse.silent_s >= self._settings.load_silence_s
        return Verdict.HOPELESS if lost else Verdict.FINE

    def kill(self) -> None:
        """End it now, because its pulse says that it is hopeless."""
        self._killed_for = f"{self.pulse.explain()}; the engine process was killed"
        self.process.kill()

    async def end(self, *, at_once: bool) -> None:
        """Ask it to end, then insist; returns when it has ended.

        at_once leaves out the asking: for a process that is stalled.
        """
        process, grace_s = self.process, self._settings.stop_grace_s
        if not at_once:
            if self.hello is None:  # one that is still loading reads no commands
                process.terminate()
            else:  # and one that runs leaves signals to us
                self.link.send(Stop())
            if await process.wait(grace_s):
                return
            log.warning("replica_ignores_stop", extra={"pid": process.pid})
        process.kill()
        await process.wait()

    async def cause(self) -> str:
        """What it died of, in one line; waits a moment for a message it may have left."""
        code = self.process.exit_code
        assert code is not None, "it has not ended"
        if self._killed_for is not None:
            return self._killed_for
        # One that failed has flushed its message; one that was killed leaves none.
        waited_s = 0.0 if code > 0 else LAST_WORDS_S
        while self.failure is None and waited_s < LAST_WORDS_S:
            await asyncio.sleep(POLL_S)
            waited_s += POLL_S
            self.link.drain()
        return describe_exit(code) if self.failure is None else self.failure.message

    def _take(self, report: Report) -> None:
        match report:
            case StepReport():
                self.pulse.stepped()
                self.status = report.status
                self._listener.on_report(report)
            case Heartbeat():
                self.pulse.beat(report.since_progress_s)
            case ReplicaHello():
                self.pulse.heard()
                self.hello, self.status = report, report.status
                self._ready_since = self._clock.now()
                self._listener.on_hello(report, self._ready_since - self._started)
            case ReplicaFailed():
                self.failure = report
                self._listener.on_failed(report)
            case LoadProgress():
                self.pulse.heard()
                self._listener.on_load(report)
