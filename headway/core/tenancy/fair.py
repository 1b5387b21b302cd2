"""Weighted fair share: who has been served least, for their weight, goes next.

Every party has a virtual time, the tokens served to it over its weight, and the one with the
least goes next. Whoever joins after a pause starts at the present, so that nobody saves up a
claim by staying away. Source: Sheng et al. 2024, "Fairness in Serving Large Language
Models" (virtual token counter), with the start time of start-time fair queueing.
"""

import heapq
from typing import Generic, TypeVar

Party = TypeVar("Party", bound="tuple[int, str]")

FORGET_FROM = 1024  # parties kept before those that stand at the present anyway are dropped


class FairShare(Generic[Party]):
    """Virtual times of all parties, and which of those that wait has the least."""

    def __init__(self, times: dict[Party, float] | None = None) -> None:
        """`times` may be another's `times`: what is charged to one is charged to both."""
        self.times: dict[Party, float] = {} if times is None else times
        self._waiting: set[Party] = set()
        self._heap: list[tuple[float, Party]] = []  # times may be behind; they only rise
        self._in_heap: set[Party] = set()
        self._present = 0.0

    def join(self, party: Party) -> None:
        """It has something waiting from now on; calling it twice is harmless."""
        if party in self._waiting:
            return
        self.first()  # the present is that of now, however long nobody has asked
        self.times[party] = max(self.times.get(party, 0.0), self._present)
        self.show(party)

    def show(self, party: Party) -> None:
        """Count it in again after `leave`, with the claim that it had."""
        self._waiting.add(party)
        if party not in self._in_heap:
            self._in_heap.add(party)
            time = self.times.setdefault(party, self._present)
            heapq.heappush(self._heap, (time, party))

    def leave(self, party: Party) -> None:
        """Nothing of it waits any more."""
        self._waiting.discard(party)
        if len(self.times) > FORGET_FROM:
            gone = [known for known, time in self.times.items() if time <= self._present]
            for known in gone:
                if known not in self._in_heap:
                    del self.times[known]

    def charge(self, party: Party, tokens: int, weight: float) -> None:
        """That many tokens were computed for it."""
        self.times[party] = self.times.get(party, self._present) + tokens / weight

    def time_of(self, party: Party) -> float:
        """Virtual time of a party that waits."""
        return self.times[party]

    def first(self) -> Party | None:
        """The party to serve next, of those that wait; O(log n) amortized."""
        while self._heap:
            time, party = self._heap[0]
            known = self.times.setdefault(party, time)
            if party not in self._waiting:
                heapq.heappop(self._heap)
                self._in_heap.discard(party)
            elif known > time:
                heapq.heapreplace(self._heap, (known, party))
            else:
                self._present = max(self._present, time)
                return party
        return None
