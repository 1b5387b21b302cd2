"""Slots that somebody has only as long as nobody who is entitled to them wants them.

Long requests leave a few slots to short ones, and requests lifted by ageing have a few slots
for certain. Beyond that both may have what is free: as guests, who give way at once.
"""

from headway.core.sched.preempt import MAX_PREEMPTIONS
from headway.core.sched.running import RunningSet
from headway.core.sched.sequence import Sequence

# Slots that sequences lifted by ageing have for certain, one of so many and at least one: they
# never starve, and never take the place of a class.
LIFTED_SLOT_EVERY = 16


class Guests:
    """Who of those that run, or would, has a slot beyond what its kind is entitled to."""

    def __init__(self, max_num_seqs: int, max_long: int) -> None:
        """`max_long` slots are for long sequences, whoever else waits."""
        self._max_long = max_long
        self._max_lifted = max(1, max_num_seqs // LIFTED_SLOT_EVERY)

    def of(self, running: RunningSet) -> tuple[frozenset[int], frozenset[int]]:
        """Ids of the long and of the lifted guests: the latest arrivals over the number."""
        long: list[int] = []
        lifted: list[int] = []
        if self.has_long(running):
            long = sorted(s.id for s in running.values() if s.standing.is_long)
        if running.num_lifted > self._max_lifted:
            lifted = sorted(s.id for s in running.values() if s.is_lifted)
        return frozenset(long[self._max_long :]), frozenset(lifted[self._max_lifted :])

    def has_long(self, running: RunningSet) -> bool:
        """Whether anybody has a slot that is kept for short ones."""
        return running.num_long > self._max_long

    def room(self, running: RunningSet) -> tuple[bool, bool]:
        """Whether another long one, and another lifted one, would be no guest."""
        return running.num_long < self._max_long, running.num_lifted < self._max_lifted

    @staticmethod
    def may_come(sequence: Sequence) -> bool:
        """Whether it may be a guest: one that had to give way often would compute in vain."""
        return sequence.is_lifted or sequence.standing.num_preempted < MAX_PREEMPTIONS
