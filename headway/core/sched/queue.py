"""Sequences that wait for a slot: strict between classes, fair and by deadline within one.

Waiting long enough lifts a sequence by one class, and again after as long, so nobody waits for
ever; what lifts costs is in `line.LIFTED_WEIGHT`.
"""

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from headway.core.base.units import Seconds
from headway.core.sched.line import Entry, Flow, Line, flow_of
from headway.core.sched.sequence import Sequence
from headway.core.tenancy.tenant import NUM_CLASSES, SloClass


class QueueLimits(NamedTuple):
    """How much may wait before a request of some class, those of its own class included."""

    max_sequences: int
    max_tokens: int  # prompt tokens


class Backlog(NamedTuple):
    """What waits before somebody."""

    sequences: int
    tokens: int  # prompt tokens


class WaitingQueue:
    """All waiting sequences; three lines a rank: short, long, lifted; sums a class and tenant."""

    def __init__(self, limits: QueueLimits, ageing: Seconds) -> None:
        self.limits = limits
        self._ageing = ageing
        short = [Line() for _ in range(NUM_CLASSES)]
        self._lines = tuple((line, Line(line), Line(line)) for line in short)
        self._by_id: dict[int, Sequence] = {}
        self._sums: dict[Flow, Backlog] = {}
        self._weights: dict[Flow, float] = {}
        self._due: list[tuple[float, int]] = []  # (when, id): who is lifted next

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_id.values())

    @property
    def num_tokens(self) -> int:
        """Tokens that the waiting sequences still have to compute; choices share a prompt."""
        return sum(backlog.tokens for backlog in self._sums.values())

    def waiting_of(self, slo_class: int) -> Backlog:
        """What waits of exactly this class."""
        return _sum([b for (of, _), b in self._sums.items() if of == slo_class])

    def up_to(self, slo_class: int) -> Backlog:
        """What waits of this class and of more important ones."""
        return _sum([b for (of, _), b in self._sums.items() if of <= slo_class])

    def before(self, slo_class: int, tenant: str, weight: float, tokens: int) -> Backlog:
        """What would go before a prompt of `tokens` tokens of this tenant, were it to join.

        All of more important classes, all of its own tenant, and of each other tenant of its
        class no more than that one's share while its own is served.
        """
        own = self._sums.get((slo_class, tenant), Backlog(0, 0))
        found = [own]
        for (of, name), backlog in self._sums.items():
            if of < slo_class:
                found.append(backlog)
            elif of == slo_class and name != tenant and backlog.tokens:
                share = (own.tokens + tokens) * self._weights[of, name] / weight
                part = min(1.0, share / backlog.tokens)
                most = math.ceil(backlog.sequences * part), math.ceil(backlog.tokens * part)
                found.append(Backlog(*most))
        return _sum(found)

    def problem_with(
        self,
        num_sequences: int,
        num_tokens: int,
        free_slots: int,
        slo_class: int = SloClass.STANDARD,
    ) -> str | None:
        """Why a request of that size may not join, or None.

        Only what is as important counts, so that best effort never fills the line for others.
        `free_slots` sequences would not really wait. A prompt over the token limit is
        taken when nothing else waits, or it could never be answered.
        """
        before = self.up_to(slo_class)
        waiting = max(0, before.sequences + num_sequences - free_slots)
        if waiting > self.limits.max_sequences:
            return f"{waiting} sequences would wait, the limit is {self.limits.max_sequences}"
        tokens = before.tokens + num_tokens
        if before.tokens and tokens > self.limits.max_tokens:
            return f"{tokens} prompt tokens would wait, the limit is {self.limits.max_tokens}"
        return None

    def push(self, sequence: Sequence, now: Seconds) -> None:
        """Join the line, or come back to where it stood before; O(log n)."""
        self._by_id[sequence.id] = sequence
        sequence.standing.waiting_since = now
        self._line_of(sequence).push(sequence)
        self._plan_lift(sequence)
        self._add(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Leave the line: admitted, or its client has gone; O(log n) amortized."""
        del self._by_id[sequence.id]
        self._line_of(sequence).remove(sequence)
        self._add(sequence, -1)

    def age(self, now: Seconds) -> None:
        """Lift whoever has waited long enough."""
        while self._due and self._due[0][0] <= now:
            due, sequence_id = heapq.heappop(self._due)
            sequence = self._by_id.get(sequence_id)
            if sequence is None or self._lift_time(sequence) != due:
                continue  # it has left, or has been away meanwhile
            self._line_of(sequence).remove(sequence)
            sequence.standing.rank -= 1
            self._line_of(sequence).push(sequence)
            self._plan_lift(sequence)

    def has(self, rank: int) -> bool:
        """Whether anybody of this rank waits; cheaper than asking who."""
        return any(map(len, self._lines[rank]))

    def first(
        self, rank: int, *, with_long: bool = True, with_lifted: bool = True
    ) -> Sequence | None:
        """Who of this rank goes next; it stays in line until it is removed or set aside."""
        short, long, lifted = self._lines[rank]
        found = [short.first()]
        if with_long:
            found.append(long.first())
        if with_lifted:
            found.append(lifted.first())
        heads: list[tuple[float, Entry]] = [head for head in found if head is not None]
        return min(heads)[1].sequence if heads else None

    def set_aside(self, sequence: Sequence) -> None:
        """Look past its line's first one until `restore`."""
        self._line_of(sequence).set_aside(sequence)

    def restore(self, rank: int) -> None:
        """Whoever was set aside in this rank's lines stands where it stood."""
        for line in self._lines[rank]:
            line.restore()

    def charge(self, sequence: Sequence, start: int, end: int) -> None:
        """Its positions start .. end - 1 are being computed; each is paid for once."""
        new = end - max(start, sequence.standing.num_charged)
        if new > 0:
            sequence.standing.num_charged = end
            self._lines[sequence.standing.rank][0].charge(sequence, new)

    def _line_of(self, sequence: Sequence) -> Line:
        short, long, lifted = self._lines[sequence.standing.rank]
        if sequence.is_lifted:
            return lifted
        return long if sequence.standing.is_long else short

    def _lift_time(self, sequence: Sequence) -> float:
        standing = sequence.standing
        lifts = sequence.group.request.slo_class - standing.rank + 1
        return standing.waiting_since + max(0.0, lifts * self._ageing - standing.waited)

    def _plan_lift(self, sequence: Sequence) -> None:
        if sequence.standing.rank > 0 and self._ageing < math.inf:
            heapq.heappush(self._due, (self._lift_time(sequence), sequence.id))

    def _add(self, sequence: Sequence, sign: int) -> None:
        flow = flow_of(sequence)
        tokens = sequence.num_prompt if sequence.choice == 0 else 0
        old = self._sums.get(flow, Backlog(0, 0))
        new = Backlog(old.sequences + sign, old.tokens + sign * tokens)
        self._weights[flow] = sequence.group.request.tenant_weight
        self._sums[flow] = new
        if new.sequences == 0:
            del self._sums[flow], self._weights[flow]


def _sum(backlogs: list[Backlog]) -> Backlog:
    return Backlog(sum(b.sequences for b in backlogs), sum(b.tokens for b in backlogs))
