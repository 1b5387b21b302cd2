"""One replica on a schedule: the engine that serves real traffic, driven step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headway.core.base.errors import HeadwayError
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Event
from headway.core.messages.step import StepPlan, StepResult
from headway.core.sim.executor import SimExecutor
from headway.core.sim.loop import Schedule, SimLoop

Probe = Callable[[EngineCore, Seconds], None]


class Listener(Protocol):
    """Whom a replica tells."""

    def took(self, events: list[Event], now: Seconds) -> None:
        """Events of a step, or of what happened before it."""
        ...

    def refused(self, request: EngineRequest, error: HeadwayError, now: Seconds) -> None:
        """The engine did not take the request."""
        ...


@dataclass(slots=True)
class StepTotals:
    """What all steps of a replica came to."""

    num_steps: int = 0
    sequence_steps: int = 0  # rows of all steps
    busy_s: float = 0.0
    row_seconds: float = 0.0  # rows of each step times its duration

    def add(self, took: float, num_rows: int) -> None:
        """Count one step."""
        self.num_steps += 1
        self.sequence_steps += num_rows
        self.busy_s += took
        self.row_seconds += num_rows * took


class Runs(Protocol):
    """How a step is run: under the simulated clock it takes what it costs, over real time it
    is computed."""

    def run(self, plan: StepPlan, done: Callable[[StepResult, Seconds], None]) -> None:
        """Run a plan, and call `done` with its result and the time then; one at a time."""
        ...


class SimRuns:
    """Steps under the simulated clock."""

    def __init__(self, executor: SimExecutor, loop: SimLoop) -> None:
        self._executor = executor
        self._loop = loop

    def run(self, plan: StepPlan, done: Callable[[StepResult, Seconds], None]) -> None:
        """Let pass what the plan costs."""
        self._executor.submit(plan)
        end = Seconds(self._loop.now() + self._executor.seconds(plan))
        self._loop.at(end, lambda now: done(self._executor.collect(), now))


class LoopReplica:
    """One replica on a schedule: takes requests between steps, plans, runs, commits.

    This is the real driver's order at depth 0: what arrives during a step is seen after it.
    `probe` is called after each step with the engine and the step's duration; `pause` says how
    long it then takes until the next plan.
    """

    def __init__(
        self,
        core: EngineCore,
        runs: Runs,
        loop: Schedule,
        listener: Listener,
        *,
        probe: Probe | None = None,
        pause: Callable[[], Seconds] | None = None,
    ) -> None:
        self.core = core
        self.totals = StepTotals()
        self._runs = runs
        self._loop = loop
        self._listener = listener
        self._probe = probe
        self._pause = pause
        self._inbox: list[EngineRequest] = []
        self._cancels: list[str] = []
        self._busy = False

    def submit(self, request: EngineRequest) -> None:
        """Send a request to the replica."""
        self._inbox.append(request)
        self._wake()

    def cancel(self, request_id: str) -> None:
        """Send a cancel to the replica."""
        self._cancels.append(request_id)
        self._wake()

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.at(self._loop.now(), self._next)

    def _next(self, now: Seconds) -> None:
        """Take what has arrived, and begin a step if there is one."""
        while self._inbox or self._cancels:  # a refusal may make a client send again at once
            self._take_commands(now)
        plan = self.core.plan(now)
        if plan is None:
            assert not self.core.has_work(), "the engine has work and plans nothing"
            self._busy = False
            return
        self._runs.run(plan, lambda result, end: self._finish(plan, result, now, end))

    def _take_commands(self, now: Seconds) -> None:
        requests, self._inbox = self._inbox, []
        for request in requests:
            try:
                self.core.add(request, now)
            except HeadwayError as error:
                self._listener.refused(request, error, now)
        cancels, self._cancels = self._cancels, []
        for request_id in cancels:
            if events := self.core.cancel(request_id, now):
                self._listener.took(events, now)

    def _finish(self, plan: StepPlan, result: StepResult, began: Seconds, now: Seconds) -> None:
        events = self.core.commit(plan, result, now)
        took = Seconds(now - began)
        self.totals.add(took, len(plan.starts))
        self._listener.took(events, now)
        if self._probe is not None:
            self._probe(self.core, took)
        # After all that is due now: whoever arrives at this very moment is in the next plan.
        pause = 0.0 if self._pause is None else self._pause()
        self._loop.at(Seconds(now + pause), self._next)
