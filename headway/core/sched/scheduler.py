"""Which sequence computes which tokens in the next step.

Every step is planned anew (iteration-level scheduling, Yu et al. 2022, Orca, section 3.1):
decodes first, then prompts that have begun, then new arrivals, within a budget of tokens
and sequences. When blocks run out, the latest arrival gives up its blocks and computes
again later; the earliest always advances, so everybody ends.
"""

from dataclasses import dataclass

from headway.core.base.units import blocks_for
from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockTable
from headway.core.messages.step import BlockCopy
from headway.core.sched.chunks import StepBudget
from headway.core.sched.queue import WaitingQueue
from headway.core.sched.sequence import Sequence, State

# Blocks that a sequence which was thrown out leaves free for each running one when it comes
# back: with one, it would be thrown out again within a block's tokens.
RETURN_BLOCKS = 4


@dataclass(slots=True)
class Row:
    """What one sequence does in the step being planned."""

    sequence: Sequence
    start: int
    num_tokens: int
    copies: tuple[BlockCopy, ...]


class Scheduler:
    """Owns the waiting line and the running set; the KV manager owns the blocks."""

    def __init__(
        self, kv: KvManager, queue: WaitingQueue, budget: StepBudget, *, max_num_seqs: int
    ) -> None:
        self.kv = kv
        self.queue = queue
        self.budget = budget
        self.running: dict[int, Sequence] = {}
        self.num_preemptions = 0  # since start
        self._max_num_seqs = max_num_seqs
        self._rows: dict[int, Row] = {}  # of the step being planned

    @property
    def num_free_slots(self) -> int:
        """Sequences that could join the running ones, blocks permitting."""
        return self._max_num_seqs - len(self.running)

    def plan(self) -> list[Row]:
        """Rows of the next step; empty when nothing can be computed now.

        Blocks are reserved and `num_planned` is advanced: the caller computes the rows,
        or ends their sequences.
        """
        self._rows = {}
        self.budget.begin()
        running = sorted(self.running.values(), key=lambda s: s.id)
        for sequence in [s for s in running if s.gap == 1] + [s for s in running if s.gap > 1]:
            if sequence.state is State.RUNNING and sequence.wants_step:
                self._continue(sequence)
        self._admit()
        rows = list(self._rows.values())
        for row in rows:
            row.sequence.num_planned = row.start + row.num_tokens
        self._rows = {}
        return rows

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended, wherever it was; its blocks are free on return."""
        if sequence.state is State.WAITING:
            self.queue.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._stop_running(sequence)
        sequence.move(State.FINISHED)

    def _continue(self, sequence: Sequence) -> None:
        """Plan the next part of a running sequence, at a later arrival's cost if need be."""
        num_tokens = self.budget.chunk(sequence.num_planned, sequence.gap)
        while num_tokens and not self._reserve(sequence, num_tokens):
            victim = max(self.running.values(), key=lambda s: s.id)
            self._preempt(victim)
            if victim is sequence:
                return

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        start = sequence.num_planned
        copies = self.kv.grow(sequence.table, start, start + num_tokens)
        if copies is None:
            return False
        self._rows[sequence.id] = Row(sequence, start, num_tokens, copies)
        self.budget.take(start, num_tokens)
        return True

    def _preempt(self, victim: Sequence) -> None:
        row = self._rows.pop(victim.id, None)
        if row is not None:
            self.budget.give_back(row.start, row.num_tokens)
        self._stop_running(victim)
        victim.move(State.WAITING)
        self.queue.push(victim)
        self.num_preemptions += 1

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        self.kv.close(sequence.table)
        sequence.forget_steps()
        del self.running[sequence.id]

    def _admit(self) -> None:
        """Start waiting sequences in order, until slots, budget or blocks run out."""
        coming = self._coming_blocks()
        for sequence in list(self.queue):
            if self.budget.num_left < 1 or self.num_free_slots < 1:
                return
            if self._waits_for_leader(sequence) or self._waits_for_prefix(sequence, coming):
                continue
            if not self._start(sequence):
                return
            coming |= self._coming_from(sequence)

    def _start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks and its first rows; False, and nothing taken, if not."""
        table = self._open_table(sequence)
        sequence.table = table
        num_tokens = self.budget.chunk(sequence.num_planned, sequence.gap)
        if (
            not num_tokens
            or not self._has_room(sequence)
            or not self._reserve(sequence, num_tokens)
        ):
            self.kv.close(table)
            sequence.forget_steps()
            return False
        self.queue.remove(sequence)
        sequence.move(State.RUNNING)
        self.running[sequence.id] = sequence
        return True

    def _open_table(self, sequence: Sequence) -> BlockTable:
        leader, request = sequence.leader, sequence.group.request
        is_fresh_sibling = leader is not sequence and sequence.num_outputs == 0
        if is_fresh_sibling and leader.table is not None and sequence.num_prompt > 1:
            # The last prompt token is computed again: its logits are what is drawn from.
            computed = sequence.num_prompt - 1
            table = self.kv.fork(leader.table, computed)
            sequence.names = table.hashes
        else:
            use_cache = not (request.sampling.prompt_logprobs and leader is sequence)
            table = self.kv.open(
                sequence.tokens, request.cache_salt, use_cache=use_cache, names=sequence.names
            )
            computed = table.num_cached
        sequence.num_computed = sequence.num_planned = computed
        return table

    def _has_room(self, sequence: Sequence) -> bool:
        """Room for all its known tokens, and for what each that runs will need before long.

        Without the spare blocks a newcomer would take the last ones, and would be thrown
        out again as soon as an earlier sequence crosses the border of a block. One that was
        thrown out already has computed more to lose, and waits for more of them. When
        nothing runs, it needs no more than its own.
        """
        ahead = RETURN_BLOCKS if sequence.num_outputs else 1
        spare = sum(self._still_needs(other, ahead) for other in self.running.values())
        return self.kv.num_available >= self._still_needs(sequence, 0) + spare

    def _still_needs(self, sequence: Sequence, ahead: int) -> int:
        """Blocks that it lacks for its known tokens and `ahead` more blocks of its answer."""
        assert sequence.table is not None, f"sequence {sequence.id} has no table"
        size, most = self.kv.block_size, sequence.group.request.sampling.max_tokens
        known = blocks_for(len(sequence.tokens), size)
        last = blocks_for(sequence.num_prompt + most, size)
        return min(known + ahead, last) - len(sequence.table.blocks)

    def _coming_blocks(self) -> set[bytes]:
        """Names of the blocks that running sequences are about to compute of their prompts."""
        coming: set[bytes] = set()
        for sequence in self.running.values():
            coming |= self._coming_from(sequence)
        return coming

    def _coming_from(self, sequence: Sequence) -> set[bytes]:
        if sequence.num_computed >= sequence.num_prompt:
            return set()
        return set(sequence.names[sequence.num_computed // self.kv.block_size :])

    def _waits_for_prefix(self, sequence: Sequence, coming: set[bytes]) -> bool:
        """True when the next block it would compute is being computed by a running sequence.

        So sixteen requests with one new beginning compute it once. The one that computes it
        runs in every step; should it stop, the others no longer wait.
        """
        request = sequence.group.request
        if not coming or (request.sampling.prompt_logprobs and sequence.choice == 0):
            return False
        name = self.kv.next_to_compute(sequence.tokens, request.cache_salt, sequence.names)
        return name is not None and name in coming

    @staticmethod
    def _waits_for_leader(sequence: Sequence) -> bool:
        """True for a choice whose prompt another one is computing or will compute."""
        leader = sequence.leader
        if leader is sequence or sequence.num_outputs > 0 or leader.state is State.FINISHED:
            return False
        return leader.num_computed < sequence.num_prompt
