"""The schedule and the steps of core.sim over real time, on a real executor."""

import heapq
import time
from collections.abc import Callable
from itertools import count

from headway.core.base.units import Seconds
from headway.core.engine.executor import Executor
from headway.core.messages.step import StepPlan, StepResult
from headway.core.sim.loop import Action


class WallLoop:
    """Runs actions in the order of their times, none before its time; one thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._start = clock()
        self._due: list[tuple[Seconds, int, Action]] = []
        self._order = count()

    def now(self) -> Seconds:
        """Seconds since the loop was made."""
        return Seconds(self._clock() - self._start)

    def at(self, when: Seconds, action: Action) -> None:
        """Call `action` at `when`, or after what is due before it."""
        heapq.heappush(self._due, (when, next(self._order), action))

    def run(self) -> None:
        """Run until nothing is due any more."""
        while self._due:
            early = self._due[0][0] - self.now()
            if early > 0:
                self._sleep(early)
            heapq.heappop(self._due)[2](self.now())


class WallRuns:
    """Computes steps; `last` is the latest plan, and `collected` the time of its result."""

    def __init__(self, executor: Executor, loop: WallLoop) -> None:
        self._executor = executor
        self._loop = loop
        self.last: StepPlan | None = None
        self.collected = Seconds(0.0)

    def run(self, plan: StepPlan, done: Callable[[StepResult, Seconds], None]) -> None:
        """Run a plan to its end."""
        self._executor.submit(plan)
        result = self._executor.collect()
        self.last, self.collected = plan, self._loop.now()
        done(result, self.collected)
