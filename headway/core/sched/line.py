"""The waiting sequences of one rank: fair between tenants, by deadline within each."""

import heapq
from typing import NamedTuple

from headway.core.sched.sequence import Sequence
from headway.core.tenancy.fair import FairShare

Flow = tuple[int, str]  # class and tenant: those who share a rank

# What a class is lifted by ageing costs it in weight: enough that it never starves among
# those who belong there, little enough that it does not take their place.
LIFTED_WEIGHT = 1 / 8


class Entry(NamedTuple):
    """A sequence's place within its flow; entries compare as they stand in line."""

    deadline: float  # replica clock; infinite for those who are promised nothing
    priority: int
    id: int  # rises with arrival
    turn: int  # tells apart the places of one that left and came back
    sequence: Sequence


def flow_of(sequence: Sequence) -> Flow:
    """Whom its tokens are charged to."""
    request = sequence.group.request
    return request.slo_class, request.tenant


class Line:
    """A heap a flow and the flows' fair share; all operations O(log n) amortized."""

    def __init__(self, beside: "Line | None" = None) -> None:
        """`beside` is a line of the same rank: what is charged to one is charged to both."""
        self._heaps: dict[Flow, list[Entry]] = {}
        self._counts: dict[Flow, int] = {}
        self._entries: dict[int, Entry] = {}  # those that wait; others in the heaps are stale
        self._aside: list[Entry] = []
        self._turns = 0
        self._fair: FairShare[Flow] = FairShare(None if beside is None else beside._fair.times)

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, sequence: Sequence) -> None:
        """Join; one that comes back stands where it was."""
        request, flow = sequence.group.request, flow_of(sequence)
        self._turns += 1
        deadline = sequence.standing.deadline
        entry = Entry(deadline, request.priority, sequence.id, self._turns, sequence)
        self._entries[sequence.id] = entry
        self._counts[flow] = self._counts.get(flow, 0) + 1
        heapq.heappush(self._heaps.setdefault(flow, []), entry)
        self._fair.join(flow)

    def remove(self, sequence: Sequence) -> None:
        """Leave, from wherever it stands."""
        flow = flow_of(sequence)
        del self._entries[sequence.id]
        self._counts[flow] -= 1
        if self._counts[flow] == 0:
            del self._counts[flow], self._heaps[flow]
            self._fair.leave(flow)
        elif len(self._heaps[flow]) > 2 * self._counts[flow] + 16:
            self._sweep(flow)

    def charge(self, sequence: Sequence, tokens: int) -> None:
        """Tokens were computed for it, whether it waits or runs."""
        request = sequence.group.request
        weight, lifted = request.tenant_weight, request.slo_class - sequence.standing.rank
        if lifted:
            weight *= LIFTED_WEIGHT**lifted
        self._fair.charge((request.slo_class, request.tenant), tokens, weight)

    def first(self) -> "tuple[float, Entry] | None":
        """Who goes next, with its flow's virtual time; it stays until removed or set aside."""
        while (flow := self._fair.first()) is not None:
            heap = self._heaps[flow]
            while heap and self._entries.get(heap[0].id) is not heap[0]:
                heapq.heappop(heap)
            if heap:
                return self._fair.time_of(flow), heap[0]
            self._fair.leave(flow)  # all of its own stand aside
        return None

    def set_aside(self, sequence: Sequence) -> None:
        """Look past the first one until `restore`."""
        entry = heapq.heappop(self._heaps[flow_of(sequence)])
        assert entry.sequence is sequence, f"sequence {sequence.id} is not the first"
        self._aside.append(entry)

    def restore(self) -> None:
        """Whoever was set aside and still waits is back where it stood."""
        for entry in self._aside:
            if self._entries.get(entry.id) is entry:
                flow = flow_of(entry.sequence)
                heapq.heappush(self._heaps[flow], entry)
                self._fair.show(flow)
        self._aside.clear()

    def _sweep(self, flow: Flow) -> None:
        heap = [entry for entry in self._heaps[flow] if self._entries.get(entry.id) is entry]
        heapq.heapify(heap)
        self._heaps[flow] = heap
