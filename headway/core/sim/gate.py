"""Batching policies: which of the waiting requests may enter the engine now.

The engine itself batches continuously, so older ways of batching are made by what is let in:

    static      a batch of N enters when the one before has ended entirely
    dynamic     a batch is what arrived within a time window of its first, N at most
    continuous  everything enters at once
"""

from collections import deque
from typing import Protocol

from headway.core.base.units import Seconds
from headway.core.sim.workload import Planned


class Gate(Protocol):
    """Holds requests back; decides, and does nothing by itself."""

    def arrive(self, planned: Planned, now: Seconds) -> None:
        """A request is there."""
        ...

    def ended(self, now: Seconds) -> None:
        """A request that was let in has ended."""
        ...

    def close(self) -> None:
        """No other request will arrive."""
        ...

    def take(self, now: Seconds) -> list[Planned]:
        """Those that may enter now."""
        ...

    def due(self) -> Seconds | None:
        """When `take` may give more although nothing happens until then."""
        ...


class Continuous:
    """Everything enters at once."""

    def __init__(self) -> None:
        self._waiting: list[Planned] = []

    def arrive(self, planned: Planned, now: Seconds) -> None:
        """Waits only until the next `take`."""
        self._waiting.append(planned)

    def ended(self, now: Seconds) -> None:
        """Changes nothing."""

    def close(self) -> None:
        """Changes nothing."""

    def take(self, now: Seconds) -> list[Planned]:
        """All there are."""
        taken, self._waiting = self._waiting, []
        return taken

    def due(self) -> Seconds | None:
        """Never."""
        return None


class Batches:
    """One batch at a time, of at most `size`; the next enters when it has ended entirely.

    Without a window a batch waits until it is full (static batching), and only the last may
    be smaller; with one it goes as soon as its first request has waited that long (dynamic
    batching).
    """

    def __init__(self, size: int, window: Seconds | None = None) -> None:
        self._size = size
        self._window = window
        self._waiting: deque[tuple[Seconds, Planned]] = deque()
        self._num_inside = 0
        self._closed = False

    def arrive(self, planned: Planned, now: Seconds) -> None:
        """Waits for a batch."""
        self._waiting.append((now, planned))

    def ended(self, now: Seconds) -> None:
        """One less is inside."""
        self._num_inside -= 1

    def close(self) -> None:
        """The last batch may be smaller."""
        self._closed = True

    def take(self, now: Seconds) -> list[Planned]:
        """A batch, when none is inside and this one is full or has waited enough."""
        if self._num_inside or not self._waiting or not self._may_go(now):
            return []
        count = min(self._size, len(self._waiting))
        self._num_inside = count
        return [self._waiting.popleft()[1] for _ in range(count)]

    def due(self) -> Seconds | None:
        """When the window of the batch that gathers closes."""
        if self._num_inside or not self._waiting or self._window is None:
            return None
        return Seconds(self._waiting[0][0] + self._window)

    def _may_go(self, now: Seconds) -> bool:
        if self._closed or len(self._waiting) >= self._size:
            return True
        due = self.due()
        return due is not None and now >= due
