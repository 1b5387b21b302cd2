"""A replica in a thread of this process: for laptops, tests and the simplest deployments.

Nothing restarts it: an engine that fails leaves the transport FAILED.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from headway.core.base.clock import Clock
from headway.core.base.errors import ReplicaNotReady, StartError
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
from headway.core.messages.path import Cancel, Command, EngineRequest, Stop, Submit
from headway.service.wire.lifecycle import Lifecycle
from headway.service.wire.mailbox import Mailboxes, RequestMailbox
from headway.service.wire.transport import ReplicaState, ReplicaView

log = logging.getLogger(__name__)

RETRY_AFTER = Seconds(5.0)


class Loop(Protocol):
    """An engine's loop: takes commands from any thread, runs in its own until Stop."""

    def put(self, command: Command) -> None:
        """Take a command; returns at once."""
        ...

    def run(self) -> None:
        """Serve until a Stop command; whatever it raises ends the replica."""
        ...


Send = Callable[[Report], None]
Build = Callable[[Send], tuple[Loop, ReplicaHello]]


class InprocTransport:
    """The Transport over an engine that `build` makes, in the engine's own thread."""

    def __init__(
        self,
        build: Build,
        clock: Clock,
        on_report: Callable[[StepReport], None] = lambda report: None,
    ) -> None:
        self._build = build
        self._clock = clock
        self._on_step = on_report
        self._lifecycle = Lifecycle("loading", clock.now())
        self._mailboxes = Mailboxes()
        self._loop: Loop | None = None
        self._hello: ReplicaHello | None = None
        self._status: ReplicaStatus | None = None
        self._settled = asyncio.Event()  # set when loading has ended, well or badly
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to build the engine, in its own thread; returns at once."""
        assert self._thread is None, "a transport starts once"
        post = _poster(asyncio.get_running_loop(), self._take)
        self._thread = threading.Thread(target=self._main, args=(post,), name="engine", daemon=True)
        self._thread.start()

    async def wait_ready(self) -> ReplicaHello:
        """Wait until it can answer; raises StartError when it could not be built."""
        await self._settled.wait()
        if self._hello is None:
            raise StartError(self._lifecycle.reason)
        return self._hello

    async def stop(self) -> None:
        """End the engine's thread after its current step; open mailboxes fail."""
        if self._lifecycle.state is not ReplicaState.STOPPED:
            self._lifecycle.move(ReplicaState.STOPPED, "stopped", self._clock.now())
        self._mailboxes.fail_all("the engine was stopped", RETRY_AFTER)
        self._settled.set()
        if self._loop is not None:
            self._loop.put(Stop())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def view(self) -> ReplicaView:
        """What is known now."""
        return ReplicaView(
            state=self._lifecycle.state,
            reason=self._lifecycle.reason,
            since_s=self._clock.now() - self._lifecycle.since,
            restarts=0,
            retry_after_s=RETRY_AFTER,
            hello=self._hello,
            status=self._status,
        )

    def call(self, request: EngineRequest) -> RequestMailbox:
        """Hand a request to the engine; raises ReplicaNotReady."""
        if self._loop is None or self._lifecycle.state is not ReplicaState.READY:
            raise ReplicaNotReady(f"the engine is not ready: {self._lifecycle.reason}", RETRY_AFTER)
        mailbox = self._mailboxes.open(request.id)
        self._loop.put(Submit(request=request))
        return mailbox

    def cancel(self, request_id: str) -> None:
        """Free what the request holds; its mailbox still gets its Finished."""
        if self._loop is not None:
            self._loop.put(Cancel(request_id=request_id))

    def _main(self, post: Send) -> None:
        try:
            loop, hello = self._build(post)
            self._loop = loop
            # `stop` sets the state before it looks for the loop, so one of the two sees the other.
            if self._lifecycle.state is not ReplicaState.STOPPED:
                post(hello)
                loop.run()
        except StartError as error:
            post(ReplicaFailed(message=error.message))
        except Exception as error:
            log.exception("engine_thread_failed")
            message = f"the engine ended with {type(error).__name__}; the log has the place"
            post(ReplicaFailed(message=message))

    def _take(self, report: Report) -> None:
        if self._lifecycle.state is ReplicaState.STOPPED:
            return
        match report:
            case StepReport():
                self._status = report.status
                self._mailboxes.deliver(report.events)
                self._on_step(report)
            case ReplicaHello():
                self._hello, self._status = report, report.status
                self._lifecycle.move(ReplicaState.READY, "ready", self._clock.now())
                self._settled.set()
            case ReplicaFailed():
                self._lifecycle.move(ReplicaState.FAILED, report.message, self._clock.now())
                self._mailboxes.fail_all(report.message, RETRY_AFTER)
                self._settled.set()
            case LoadProgress():
                self._lifecycle.explain(f"loading {report.stage} {report.done}/{report.total}")
            case Heartbeat():
                pass  # a thread of this process: its loop's health is ours


def _poster(event_loop: asyncio.AbstractEventLoop, take: Send) -> Send:
    def post(report: Report) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody reads any more
            event_loop.call_soon_threadsafe(take, report)

    return post
