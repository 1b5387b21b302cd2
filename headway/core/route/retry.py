"""Whether a request that failed at one replica may go on at another.

Before its first token it is sent anew, as long as such retries stay a small part of all requests:
a pool whose replicas all fail must not get twice the load for it. After its first token it is only
ever continued, from the tokens that its client has; that costs no budget, for nothing else saves
the stream. Either ends when replicas fail it one after the other without a token in between: then
it is the request that is at fault.
"""

from collections import deque

import msgspec

from headway.core.base.units import Seconds


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is tried again."""

    share: float = 0.2  # of the requests of the last minute
    least: int = 100  # retries a minute that are always allowed: what one dead replica had waiting
    in_a_row: int = 3  # replicas that may fail one request without a token in between


WINDOW = Seconds(60.0)


class RetryBudget:
    """Counts the requests and the retries of the last minute, of one pool."""

    def __init__(self, settings: RetrySettings | None = None) -> None:
        self.settings = settings or RetrySettings()
        self._requests = _Lately()
        self._retries = _Lately()

    def came(self, now: Seconds) -> None:
        """A request came."""
        self._requests.add(now)

    def take(self, now: Seconds) -> bool:
        """Count one retry; False, and nothing is counted, when that would be too many."""
        allowed = max(self.settings.least, self.settings.share * self._requests.count(now))
        if self._retries.count(now) + 1 > allowed:
            return False
        self._retries.add(now)
        return True


class Tries:
    """One request's."""

    __slots__ = ("_budget", "_has_begun", "_in_a_row", "count")

    def __init__(self, budget: RetryBudget) -> None:
        self._budget = budget
        self._has_begun = False
        self._in_a_row = 0
        self.count = 0  # times that it went on elsewhere

    def gained(self) -> None:
        """Its client got tokens."""
        self._has_begun = True
        self._in_a_row = 0

    def may_go_on(self, now: Seconds) -> bool:
        """It was lost; whether it may go on elsewhere, which counts."""
        self._in_a_row += 1
        if self._in_a_row > self._budget.settings.in_a_row:
            return False
        if not self._has_begun and not self._budget.take(now):
            return False
        self.count += 1
        return True


class _Lately:
    """How many in each of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()  # (whole second, count)
        self._total = 0

    def add(self, now: Seconds) -> None:
        second = int(now)
        count = 1
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        self._total += 1

    def count(self, now: Seconds) -> int:
        while self._seconds and self._seconds[0][0] < now - WINDOW:
            self._total -= self._seconds.popleft()[1]
        return self._total
