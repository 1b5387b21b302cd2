"""The thread that owns the engine: inbox, plan, submit, collect, commit, outbox."""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import CapacityError, HeadwayError
from headway.core.base.units import Seconds
from headway.core.engine.executor import Executor
from headway.core.messages.health import ReplicaStatus, StepReport
from headway.core.messages.path import (
    Cancel,
    Command,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Stop,
    Submit,
    Usage,
)
from headway.core.messages.step import StepPlan, StepResult


class Engine(Protocol):
    """What the driver needs of `core.engine.core.EngineCore`; see there."""

    def add(self, request: EngineRequest, now: Seconds) -> None:
        """Take a request; raises QueueFull or InvalidRequest and is left as it was."""
        ...

    def cancel(self, request_id: str, now: Seconds) -> list[Event]:
        """End a request, if it is known, and free its blocks; its Finished, or nothing."""
        ...

    def plan(self, now: Seconds) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        ...

    def commit(self, plan: StepPlan, result: StepResult, now: Seconds) -> list[Event]:
        """Take a step's result; all events that came of it."""
        ...

    def take_events(self) -> list[Event]:
        """Events made outside of commit since the last call."""
        ...

    def status(self) -> ReplicaStatus:
        """Gauges and totals now."""
        ...

    def check(self) -> None:
        """Fail loudly when what must always hold does not."""
        ...

    def has_work(self) -> bool:
        """True while a request waits or runs."""
        ...


class Inbox:
    """Commands from other threads to the driver, in order."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Condition()

    def put(self, command: Command) -> None:
        """Add a command and wake the driver; returns at once."""
        with self._arrived:
            self._commands.append(command)
            self._arrived.notify()

    def take(self) -> list[Command]:
        """All commands that are there, oldest first; does not wait."""
        with self._arrived:
            taken = list(self._commands)
            self._commands.clear()
        return taken

    def wait(self) -> None:
        """Return once there is a command."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._commands))


class ProgressMeter:
    """For how long work has been pending without a step completing; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending_since: Seconds | None = None
        self._num_steps = 0

    def work_arrived(self, now: Seconds) -> None:
        """A command is in the inbox: from now on silence counts, also if nobody takes it."""
        with self._lock:
            if self._pending_since is None:
                self._pending_since = now

    def inbox_emptied(self, now: Seconds, *, has_work: bool) -> None:
        """Commands were taken, which is no progress by itself unless nothing is left to do."""
        with self._lock:
            if not has_work:
                self._pending_since = None
            elif self._pending_since is None:
                self._pending_since = now

    def step_done(self, now: Seconds, *, has_work: bool) -> None:
        """A step was committed."""
        with self._lock:
            self._num_steps += 1
            self._pending_since = now if has_work else None

    def read(self, now: Seconds) -> tuple[int, float]:
        """Steps so far, and seconds that work has been pending without one (0 while idle)."""
        with self._lock:
            since = self._pending_since
            return self._num_steps, 0.0 if since is None else max(0.0, now - since)


class DriverSettings(NamedTuple):
    """How a driver runs its engine, and what the engine's memory consists of."""

    depth: int = 0  # steps in flight while the next one is planned, 0 or 1
    check_when_idle: bool = False
    weight_bytes: int = 0
    block_bytes: int = 0  # of one KV block

    def with_memory(self, status: ReplicaStatus) -> ReplicaStatus:
        """The engine counts blocks; here they get their size, and the weights are added."""
        used = status.total_blocks - status.free_blocks - status.cached_blocks
        return msgspec.structs.replace(
            status,
            memory_used=self.weight_bytes + used * self.block_bytes,
            memory_budget=self.weight_bytes + status.total_blocks * self.block_bytes,
        )


class _InFlight(NamedTuple):
    plan: StepPlan
    submitted: Seconds


class Driver:
    """Runs one engine on one executor, in the thread that calls `run`.

    At depth 0 each step is planned from the committed result of the one before. Whatever the
    engine or the executor raises leaves `run`: a step that failed halfway has no known state
    to go on from.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        send: Callable[[StepReport], None],
        clock: Clock,
        settings: DriverSettings | None = None,
    ) -> None:
        self._settings = settings or DriverSettings()
        depth = self._settings.depth
        assert depth in (0, 1), f"depth {depth}: an executor takes two plans at most"
        self._engine = engine
        self._executor = executor
        self._send = send
        self._clock = clock
        self._inbox = Inbox()
        self._in_flight: deque[_InFlight] = deque()
        self._last_done = Seconds(0.0)
        self._stopping = False
        self.progress = ProgressMeter()

    def put(self, command: Command) -> None:
        """Take a command from any thread; returns at once."""
        if isinstance(command, Submit):
            self.progress.work_arrived(self._clock.now())
        self._inbox.put(command)

    def run(self) -> None:
        """Serve until a Stop command, which ends it after the current step."""
        while True:
            self._take_commands()
            if self._stopping:
                break
            if not self._step():
                self._idle()
        self._executor.close()

    def _take_commands(self) -> None:
        """Adds, cancels and refusals; these do not wait for the step that follows."""
        commands = self._inbox.take()
        if not commands:
            return
        events: list[Event] = []
        for command in commands:
            match command:
                case Submit():
                    events += self._add(command.request)
                case Cancel():
                    events += self._engine.cancel(command.request_id, self._clock.now())
                case Stop():
                    self._stopping = True
        self.progress.inbox_emptied(self._clock.now(), has_work=self._engine.has_work())
        if events:
            self._report(events)

    def _add(self, request: EngineRequest) -> list[Event]:
        try:
            self._engine.add(request, self._clock.now())
        except HeadwayError as error:
            return [refusal(request, error)]
        return []

    def _step(self) -> bool:
        """Plan, submit and, at full depth, finish a step; False when there was none to do."""
        plan = self._engine.plan(self._clock.now())
        if plan is not None:
            self._in_flight.append(_InFlight(plan, self._clock.now()))
            self._executor.submit(plan)
        if not self._in_flight:
            return False
        if plan is None or len(self._in_flight) > self._settings.depth:
            self._finish(self._in_flight.popleft())
        return True

    def _finish(self, step: _InFlight) -> None:
        result = self._executor.collect()
        now = self._clock.now()
        # Events made while planning (Started) travel with the step's own: one message a step.
        events = self._engine.take_events() + self._engine.commit(step.plan, result, now)
        self.progress.step_done(now, has_work=self._engine.has_work())
        self._report(events, now - max(step.submitted, self._last_done))
        self._last_done = now

    def _idle(self) -> None:
        """Nothing to compute until a command comes; work that no plan takes would wait for ever."""
        assert not self._engine.has_work(), "the engine has work and plans nothing"
        if events := self._engine.take_events():
            self._report(events)
        if self._settings.check_when_idle:
            self._engine.check()
        self._inbox.wait()

    def _report(self, events: list[Event], step_s: float = 0.0) -> None:
        status = self._settings.with_memory(self._engine.status())
        self._send(StepReport(events=tuple(events), status=status, step_s=step_s))


def refusal(request: EngineRequest, error: HeadwayError) -> Finished:
    """The one Finished of a request that the engine did not take."""
    return Finished(
        request_id=request.id,
        reason=FinishReason.ERROR,
        usage=Usage(prompt_tokens=len(request.prompt), completion_tokens=0),
        error=error.message,
        error_code=error.code,
        retry_after_s=error.retry_after_s if isinstance(error, CapacityError) else None,
    )
