"""Room for a newcomer: the blocks that it lacks, and what others are computing for it."""

from collections.abc import Iterable

from headway.core.base.units import blocks_for
from headway.core.kv.manager import KvManager
from headway.core.sched.sequence import Sequence, State

# Blocks that a sequence which was thrown out leaves free for each running one when it comes
# back: with one, it would be thrown out again within a block's tokens.
RETURN_BLOCKS = 4


def missing_blocks(kv: KvManager, sequence: Sequence, running: Iterable[Sequence]) -> int:
    """Blocks that it lacks for all its known tokens, beside what those that run need soon.

    Without the spare blocks a newcomer would take the last ones, and would be thrown
    out again as soon as an earlier sequence crosses the border of a block. One that was
    thrown out already has computed more to lose, and waits for more of them. When
    nothing runs, it needs no more than its own. Less important ones get no spare blocks:
    they give way when blocks run out.
    """
    ahead = RETURN_BLOCKS if sequence.num_outputs else 1
    slo_class = sequence.group.request.slo_class
    spare = sum(
        still_needs(kv, other, ahead)
        for other in running
        if other.group.request.slo_class <= slo_class
    )
    return still_needs(kv, sequence, 0) + spare - kv.num_available


def still_needs(kv: KvManager, sequence: Sequence, ahead: int) -> int:
    """Blocks that it lacks for its known tokens and `ahead` more blocks of its answer."""
    assert sequence.table is not None, f"sequence {sequence.id} has no table"
    size, most = kv.block_size, sequence.group.request.sampling.max_tokens
    known = blocks_for(len(sequence.tokens), size)
    last = blocks_for(sequence.num_prompt + most, size)
    return min(known + ahead, last) - len(sequence.table.blocks)


def waits_for_leader(sequence: Sequence) -> bool:
    """True for a choice whose prompt another one is computing or will compute."""
    leader = sequence.leader
    if leader is sequence or sequence.num_outputs > 0 or leader.state is State.FINISHED:
        return False
    return leader.num_computed < sequence.num_prompt


class Coming:
    """Names of the blocks that running sequences are about to compute of their prompts.

    So sixteen requests with one new beginning compute it once. The one that computes it
    runs in every step; should it stop, the others no longer wait. Nobody waits for somebody
    less important.
    """

    def __init__(self, kv: KvManager, running: Iterable[Sequence]) -> None:
        self._kv = kv
        self._ranks: dict[bytes, int] = {}
        for sequence in running:
            self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """This one runs now."""
        if sequence.num_computed >= sequence.num_prompt:
            return
        rank = sequence.standing.rank
        for name in sequence.names[sequence.num_computed // self._kv.block_size :]:
            self._ranks[name] = min(rank, self._ranks.get(name, rank))

    def holds_up(self, sequence: Sequence) -> bool:
        """True when the next block it would compute is being computed by a running sequence."""
        request = sequence.group.request
        if not self._ranks or (request.sampling.prompt_logprobs and sequence.choice == 0):
            return False
        name = self._kv.next_to_compute(sequence.tokens, request.cache_salt, sequence.names)
        rank = None if name is None else self._ranks.get(name)
        return rank is not None and rank <= sequence.standing.rank
