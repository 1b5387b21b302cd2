"""The only mention of time in core: whoever needs `now` is given it."""

from typing import Protocol

from headway.core.base.units import Seconds


class Clock(Protocol):
    """Monotonic seconds from an arbitrary start; two processes' clocks do not agree."""

    def now(self) -> Seconds:
        """Seconds since the clock's own start; never goes back."""
        ...


class ManualClock:
    """A clock that moves only when told to: for tests and for simulation."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> Seconds:
        """The time it was last moved to."""
        return Seconds(self._now)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0)."""
        assert seconds >= 0, f"a monotonic clock cannot move by {seconds}"
        self._now += seconds
