"""The ladder: what changes as memory or time get short, one rung at a time.

    normal   everything is admitted that fits
    swap     blocks are copied to the host tier ahead of need, and stopping prefers to swap
    hold     less important classes are not admitted, and fewer sequences run at a time: three
             quarters of those that ran when the rung was entered, those included that were
             just stopped; less again for as many more that are stopped while it holds
    refuse   best effort is refused at the door, with the time after which to come back

It climbs at once and comes down a rung at a time, each after a calm while, so that it does not
swing; what hold took away comes back bit by bit below it. An idle engine is on the ground, and
has all its slots.
"""

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from headway.core.base.units import Seconds
from headway.core.sched.held import Held
from headway.core.sched.sequence import Sequence


class Rung(IntEnum):
    """How far up the ladder."""

    NORMAL = 0
    SWAP = 1
    HOLD = 2
    REFUSE = 3


class Signals(NamedTuple):
    """What the ladder goes by, at one moment."""

    free_share: float  # of the blocks: free, or cached and evictable
    preemptions: int  # since start, because blocks ran out
    delay: float  # seconds that best effort would wait for its first token
    is_idle: bool = False  # nothing waits or runs
    num_running: int = 0  # sequences


class LadderLimits(NamedTuple):
    """Where each rung begins; it ends at twice the share or half the count."""

    swap_below: float = 0.10  # share of blocks
    hold_preemptions: float = 3.0  # of the last seconds, see MEMORY
    refuse_delay: float = 30.0  # seconds
    dwell: float = 2.0  # seconds on a rung before the next one down


MEMORY = 5.0  # seconds after which a preemption counts a third


class Ladder:
    """The rung of one engine; all times are given.

    Memory and time climb apart: a long line alone must not make the engine serve fewer at a
    time, which would make it longer.
    """

    def __init__(self, limits: LadderLimits | None = None) -> None:
        self._limits = limits or LadderLimits()
        self._memory = _Climb()
        self._time = _Climb()
        self._held = Held()
        self._seen = (0.0, 0)  # when, and preemptions since start
        self._recent = 0.0  # preemptions, fading
        self._counted = 0  # preemptions since start that it was shrunk for

    @property
    def rung(self) -> Rung:
        """The higher one of both."""
        return max(self._memory.rung, self._time.rung)

    @property
    def swaps(self) -> bool:
        """Whether blocks are short enough to be copied to the host tier ahead of need."""
        return self._memory.rung >= Rung.SWAP

    def observe(self, signals: Signals, now: Seconds) -> Rung:
        """Take the signals of this moment; returns the rung."""
        stopped, was = signals.preemptions - self._seen[1], self._memory.rung
        self._count(signals, now)
        if signals.is_idle:
            self._recent, self._held = 0.0, Held()
            self._memory, self._time = _Climb(), _Climb()
            return self.rung
        dwell = self._limits.dwell
        self._memory.step(
            self._for_memory(signals, 1.0), self._for_memory(signals, 2.0), dwell, now
        )
        self._time.step(self._for_time(signals, 1.0), self._for_time(signals, 2.0), dwell, now)
        self._hold(signals, now, is_new=was < Rung.HOLD, is_calm=not stopped)
        return self.rung

    def holds(self, rank: int, running: Iterable[Sequence]) -> bool:
        """Whether nobody of this rank is admitted now: somebody more important runs."""
        is_short = self._memory.rung >= Rung.HOLD
        return is_short and any(s.standing.rank < rank for s in running)

    def slots(self, max_num_seqs: int, rank: int) -> int:
        """Sequences that may run at a time if one of this rank joins; the most important
        class always has all of them."""
        most = self._held.most
        return max_num_seqs if most is None or rank == 0 else min(max_num_seqs, most)

    def _hold(self, signals: Signals, now: Seconds, *, is_new: bool, is_calm: bool) -> None:
        """Bound what runs: less on entering the rung and when it was not enough, else more."""
        is_short = self._memory.rung >= Rung.HOLD
        more = signals.preemptions - self._counted
        if is_short and (is_new or more >= self._limits.hold_preemptions):
            # They leave before this is asked, and ran when there was too little.
            self._held.shrink(signals.num_running + round(self._recent), now)
            self._counted = signals.preemptions
        elif is_short or not is_calm:
            self._held.wait(now)
        else:
            self._held.grow(Seconds(self._limits.dwell), now)

    def _count(self, signals: Signals, now: Seconds) -> None:
        then, seen = self._seen
        fade = math.exp(-max(0.0, now - then) / MEMORY)
        self._recent = self._recent * fade + (signals.preemptions - seen)
        self._seen = (now, signals.preemptions)

    def _for_memory(self, signals: Signals, ease: float) -> Rung:
        """The rung for the blocks, with limits eased for coming down.

        A full pool is what it is for: only sequences that had to be stopped show that too many
        run.
        """
        limits = self._limits
        if self._recent >= limits.hold_preemptions / ease:
            return Rung.HOLD
        return Rung.SWAP if signals.free_share < limits.swap_below * ease else Rung.NORMAL

    def _for_time(self, signals: Signals, ease: float) -> Rung:
        """The same for how long best effort would wait."""
        is_late = signals.delay > self._limits.refuse_delay / ease
        return Rung.REFUSE if is_late else Rung.NORMAL


class _Climb:
    """Up at once, down a rung at a time, each after a calm while."""

    def __init__(self) -> None:
        self.rung = Rung.NORMAL
        self._since = -math.inf  # on this rung, or when it was last confirmed

    def step(self, wanted: Rung, eased: Rung, dwell: float, now: Seconds) -> None:
        """`wanted` to go up or stay, `eased` not to come down yet."""
        if wanted >= self.rung:
            self.rung = wanted
            self._since = now
        elif eased >= self.rung:
            self._since = now  # not calm enough to come down
        elif now - self._since >= dwell:
            self.rung = Rung(self.rung - 1) if self.rung < Rung.REFUSE else Rung.NORMAL
            self._since = now
