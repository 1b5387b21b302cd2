"""Keep requests from a replica that fails them, and let it have them again step by step.

    CLOSED --> OPEN           it failed several in a row, or half of the last ones
    OPEN --> RETURNING        its pause is over; each further one is twice as long
    RETURNING --> CLOSED      after successes with 1, 2, 4, ... requests at a time
    RETURNING --> OPEN        it failed again

What counts is what became of its requests, and what probes say. One that has just been started
again returns the same way, without a pause.
"""

from collections import deque
from enum import Enum

import msgspec

from headway.core.base.units import Seconds


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a replica is ejected, and for how long."""

    failures: int = 3  # in a row
    window: int = 20  # last results; half of them failed: ejected too
    pause_first_s: float = 1.0  # doubles with each ejection until it has returned
    pause_limit_s: float = 60.0
    return_limit: int = 16  # requests at a time, after which it counts as well again


class BreakerState(Enum):
    """How far a replica is trusted."""

    CLOSED = "closed"  # it gets requests as any other
    OPEN = "open"  # ejected
    RETURNING = "returning"  # it gets a few at a time


class Breaker:
    """One replica's."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._state = BreakerState.CLOSED
        self._results: deque[bool] = deque(maxlen=self._settings.window)  # True: failed
        self._in_a_row = 0
        self._ejections = 0  # since it was well
        self._until = Seconds(0.0)
        self._allowed = 0  # while it returns

    def state(self, now: Seconds) -> BreakerState:
        """As of now."""
        if self._state is BreakerState.OPEN and now >= self._until:
            self._let_back()
        return self._state

    def is_ejected(self, now: Seconds) -> bool:
        """True while it must not get anything."""
        return self.state(now) is BreakerState.OPEN

    def may_take(self, in_flight: int, now: Seconds) -> bool:
        """Whether it may get one more request beside those that it has."""
        state = self.state(now)
        if state is BreakerState.RETURNING:
            return in_flight < self._allowed
        return state is BreakerState.CLOSED

    def back_at(self, now: Seconds) -> Seconds:
        """Seconds until it may be tried again; 0 unless it is ejected."""
        return Seconds(self._until - now if self.is_ejected(now) else 0.0)

    def succeeded(self, now: Seconds) -> None:
        """A request ended well there, or a probe did."""
        state = self.state(now)
        if state is BreakerState.OPEN:
            return  # a straggler from before
        self._in_a_row = 0
        self._results.append(False)
        self.progressed(now)

    def progressed(self, now: Seconds) -> None:
        """A request got its first token there: while it returns, as good as an end."""
        if self.state(now) is BreakerState.RETURNING:
            self._allowed *= 2
            if self._allowed > self._settings.return_limit:
                self._state = BreakerState.CLOSED
                self._ejections = 0

    def failed(self, now: Seconds) -> None:
        """It failed a request or a probe, or died. What a client did wrong is no failure."""
        state = self.state(now)
        if state is BreakerState.OPEN:
            return
        self._in_a_row += 1
        self._results.append(True)
        is_full = len(self._results) == self._settings.window
        is_bad = is_full and 2 * sum(self._results) >= self._settings.window
        enough = 1 if state is BreakerState.RETURNING else self._settings.failures
        if self._in_a_row >= enough or is_bad:
            self._eject(now)

    def restarted(self, now: Seconds) -> None:
        """It is a new process now, and may fail as the one before did."""
        if self.state(now) is not BreakerState.OPEN:
            self._let_back()

    def _eject(self, now: Seconds) -> None:
        pause = self._settings.pause_first_s * 2.0 ** min(self._ejections, 30)
        self._until = Seconds(now + min(self._settings.pause_limit_s, pause))
        self._ejections += 1
        self._state = BreakerState.OPEN

    def _let_back(self) -> None:
        self._state = BreakerState.RETURNING
        self._results.clear()
        self._allowed = 1
