"""Discrete-event loop: time moves only when an event is due."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from headway.core.base.units import Seconds

Action = Callable[[Seconds], None]


class Schedule(Protocol):
    """A clock that also calls back; simulated here, and over real time in the benchmarks."""

    def now(self) -> Seconds:
        """Seconds since the schedule's start."""
        ...

    def at(self, when: Seconds, action: Action) -> None:
        """Call `action` with the time, at `when` or as soon after it as possible."""
        ...


class SimLoop:
    """Runs actions in the order of their times; those of one time in the order given.

    It is a Clock: `now` is the time of the action that runs.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = Seconds(start)
        self._due: list[tuple[Seconds, int, Action]] = []
        self._order = count()

    def now(self) -> Seconds:
        """The simulated time."""
        return self._now

    def at(self, when: Seconds, action: Action) -> None:
        """Call `action` with the time, once it is `when`; the past is refused."""
        assert when >= self._now, f"{when} s is before now, {self._now} s"
        heapq.heappush(self._due, (when, next(self._order), action))

    def run(self) -> None:
        """Run until nothing is due any more."""
        while self._due:
            self._step()

    def run_until(self, when: Seconds) -> None:
        """Run everything that is due by `when`, then move to it."""
        while self._due and self._due[0][0] <= when:
            self._step()
        self._now = max(self._now, when)

    def _step(self) -> None:
        when, _, action = heapq.heappop(self._due)
        self._now = when
        action(when)
