"""How a sequence is stopped: its blocks are kept in the host tier, or computed again.

The cheaper way by what was measured: copying blocks out and in again against computing their
tokens once more.
"""

from headway.core.base.units import Seconds, Tokens
from headway.core.cost.fitted import FittedCost
from headway.core.cost.work import StepWork
from headway.core.kv.manager import KvManager, Swapped
from headway.core.kv.table import BlockTable
from headway.core.sched.preempt import Rates, Way, cheaper_way
from headway.core.sched.sequence import Sequence

FADE = 0.9  # weight of what was measured before, each time that blocks are moved
# While blocks are short swapping may cost so many times what computing again does: that takes
# its part of steps for which others wait.
PREFERENCE = 2.0
# Copying ahead of need: so long in a step, and so many blocks.
AHEAD_S = 0.002
AHEAD_BLOCKS = 8


class Swap:
    """Keeps the blocks of stopped sequences, and measures what moving blocks costs."""

    def __init__(self, kv: KvManager, cost: FittedCost) -> None:
        self.kept: dict[int, Swapped] = {}  # of waiting sequences, by id
        self._kv = kv
        self._cost = cost
        self._moved_blocks = self._moved_s = 0.0  # lately

    def moved(self, num_blocks: int, seconds: float) -> None:
        """A step moved blocks between the tiers, and that took so long."""
        if num_blocks:
            self._moved_blocks = FADE * self._moved_blocks + num_blocks
            self._moved_s = FADE * self._moved_s + seconds

    def stop(self, sequence: Sequence, *, is_short: bool = False) -> Way:
        """Take away a running sequence's blocks, and keep them if that is cheaper; how.

        It is preferred while blocks are short.
        """
        table = _table_of(sequence)
        kept = None
        if self._way(sequence, is_short=is_short)[0] is Way.SWAP:
            kept = self._kv.swap_out(table, sequence.tokens, sequence.num_computed)
        if kept is None:
            self._kv.close(table)
            return Way.RECOMPUTE
        self.kept[sequence.id] = kept
        return Way.SWAP

    def loss(self, sequence: Sequence, *, is_short: bool = False) -> float:
        """What stopping it would cost; seconds, or tokens as long as nothing was measured."""
        return self._way(sequence, is_short=is_short)[1]

    def ahead(self, victim: Sequence | None) -> None:
        """Blocks are short: copy some before they are needed, the rest of them later.

        Those that would be evicted next, and those of the sequence that would give way next,
        unless computing them again is cheaper; so that neither has much to copy when it comes
        to that. A part helps too: it is found again by its names.
        """
        names: list[bytes] = []
        if victim is not None and self._way(victim, is_short=True, in_part=True)[0] is Way.SWAP:
            names = victim.names
        most = AHEAD_BLOCKS if self._moved_s else 1  # to begin with, to measure
        if self._moved_s:
            most = min(most, max(1, int(AHEAD_S * self._moved_blocks / self._moved_s)))
        self._kv.save_ahead(names, most)

    def release(self, sequence: Sequence) -> None:
        """Nothing needs to be kept for it any more."""
        kept = self.kept.pop(sequence.id, None)
        if kept is not None:
            self._kv.release(kept)

    def _way(
        self, sequence: Sequence, *, is_short: bool, in_part: bool = False
    ) -> tuple[Way, float]:
        """The cheaper way, and its cost; with `in_part` also where not all of it has room."""
        cost = self._kv.swap_cost(_table_of(sequence), sequence.num_computed)
        again = self._again(Tokens(sequence.num_computed), cost.num_tokens)
        speed = cost.num_tokens / again if again else None
        if not cost.fits and not in_part:
            return cheaper_way(cost.num_tokens, 0, Rates(speed, None))
        if not self._moved_s:
            return Way.SWAP, again or float(cost.num_tokens)  # how else would it be measured
        # A block is the unit here: how many bytes it has makes no difference.
        rates = Rates(speed, self._moved_blocks / self._moved_s)
        most = PREFERENCE if is_short else 1.0
        return cheaper_way(cost.num_tokens, cost.num_blocks, rates, most)

    def _again(self, num_computed: Tokens, num_tokens: Tokens) -> Seconds:
        """Time to compute the last of its computed tokens once more; 0 if nobody knows."""
        work = StepWork()
        work.add(max(0, num_computed - num_tokens), num_tokens)
        return Seconds(self._cost.seconds(work) - self._cost.decode_seconds(work))


def _table_of(sequence: Sequence) -> BlockTable:
    assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
    return sequence.table
