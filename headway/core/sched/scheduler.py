"""Which sequence computes which tokens in the next step.

Every step is planned anew (iteration-level scheduling, Yu et al. 2022, Orca, section 3.1),
within a budget of tokens and sequences: decodes first; then, the most important class first,
prompts that have begun, then new arrivals. A waiting request takes slots and blocks from
running ones of a less important class. When blocks run out among equals, the latest arrival
gives up its blocks and computes again later; the earliest of the most important always
advances, so everybody ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.base.units import Seconds
from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockTable
from headway.core.messages.step import BlockCopy
from headway.core.sched.chunks import LEAST_CHUNK
from headway.core.sched.guests import Guests
from headway.core.sched.haste import Haste
from headway.core.sched.lanes import Lanes
from headway.core.sched.preempt import Claim, Holder, Preemptions, choose_victims
from headway.core.sched.pressure import Ladder
from headway.core.sched.queue import WaitingQueue
from headway.core.sched.room import Coming, missing_blocks, waits_for_leader
from headway.core.sched.running import RunningSet
from headway.core.sched.sequence import Sequence, State
from headway.core.sched.swap import Swap
from headway.core.tenancy.tenant import NUM_CLASSES

# Waiting sequences that are looked past in one step, because what they need is being computed.
LOOK_PAST = 64


@dataclass(slots=True)
class Row:
    """What one sequence does in the step being planned."""

    sequence: Sequence
    start: int
    num_tokens: int
    copies: tuple[BlockCopy, ...]


class Parts(NamedTuple):
    """What decides with the scheduler."""

    kv: KvManager
    queue: WaitingQueue
    lanes: Lanes
    ladder: Ladder


class Scheduler:
    """Owns the running set, and asks its parts; the KV manager owns the blocks."""

    def __init__(self, parts: Parts, *, max_num_seqs: int) -> None:
        self.kv = parts.kv
        self.queue = parts.queue
        self.ladder = parts.ladder
        self.running = RunningSet()
        self.preemptions = Preemptions()
        self.budget = parts.lanes.budget  # what is left of the step being planned
        self.swap = Swap(parts.kv, parts.lanes.budget.cost)
        self._lanes = parts.lanes
        self._haste = Haste()
        self._guests = Guests(max_num_seqs, parts.lanes.max_long)
        self._max_num_seqs = max_num_seqs
        self._rows: dict[int, Row] = {}  # of the step being planned

    @property
    def num_free_slots(self) -> int:
        """Sequences that could join the running ones, blocks permitting."""
        return self._max_num_seqs - len(self.running)

    def slots_for(self, slo_class: int) -> int:
        """Slots that are free, or held by somebody less important."""
        return self.num_free_slots + self.running.num_below(slo_class)

    def plan(self, now: Seconds) -> list[Row]:
        """Rows of the next step; empty when nothing can be computed now.

        Blocks are reserved and `num_planned` is advanced: the caller computes the rows,
        or ends their sequences.
        """
        self._rows = {}
        self.budget.begin()
        self._haste.begin()
        self.queue.age(now)
        running = self.running.in_order()
        for sequence in running:
            if sequence.gap == 1:
                self._continue(sequence, 1, now)
        begun = [s for s in running if s.gap > 1]
        may_admit = True
        for rank in range(NUM_CLASSES):
            may_admit = self._serve(rank, begun, now, may_admit=may_admit)
        for rank in range(NUM_CLASSES):  # what nobody who is entitled to it wants
            self.budget.share = self._haste.share(rank, now)
            may_admit = may_admit and self._admit(rank, now, as_guests=True)
        if self.ladder.swaps:
            self.swap.ahead(self._next_to_stop())
        rows = list(self._rows.values())
        for row in rows:
            row.sequence.num_planned = row.start + row.num_tokens
            self.queue.charge(row.sequence, row.start, row.sequence.num_planned)
        self._rows = {}
        return rows

    def join(self, sequence: Sequence, now: Seconds) -> None:
        """A new sequence waits from now on."""
        sequence.standing.is_long = self._lanes.is_long(sequence.group.request)
        self._haste.came(sequence.group.request.slo_class, now)
        self.queue.push(sequence, now)

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended, wherever it was; its blocks are free on return."""
        if sequence.state is State.WAITING:
            self.queue.remove(sequence)
            self.swap.release(sequence)
        elif sequence.state is State.RUNNING:
            assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
            self.kv.close(sequence.table)
            self._leave(sequence)
        sequence.move(State.FINISHED)

    def _serve(self, rank: int, begun: list[Sequence], now: Seconds, *, may_admit: bool) -> bool:
        """Prompts of one rank; False when its first one cannot start, so nobody after it may."""
        self._lanes.open()
        self.budget.share = self._haste.share(rank, now)
        mine = [s for s in begun if s.standing.rank == rank]
        lifted = [s for s in mine if s.is_lifted]
        for sequence in lifted:  # they advance, and take nobody's place
            self._continue(sequence, min(LEAST_CHUNK, sequence.gap), now)
        for sequence in mine:
            if not sequence.is_lifted:
                self._continue(sequence, sequence.gap, now)
        may_admit = may_admit and self._admit(rank, now)
        if lifted:
            self._extend_all(lifted)
        if self._lanes.was_short and self.budget.num_left:
            self._lanes.lift()
            planned = [row.sequence for row in self._rows.values()]
            self._extend_all(s for s in planned if s.standing.is_long and s.standing.rank == rank)
            for sequence in mine:
                if sequence.id not in self._rows:
                    self._continue(sequence, sequence.gap, now)
            may_admit = may_admit and self._admit(rank, now)
        return may_admit

    def _continue(self, sequence: Sequence, wanted: int, now: Seconds) -> None:
        """Plan the next part of a running sequence, at somebody else's cost if need be."""
        if sequence.state is not State.RUNNING or not sequence.wants_step:
            return
        left = self.budget.num_left
        num_tokens = min(1, left) if wanted == 1 else self._chunk(sequence, wanted)
        while num_tokens and not self._reserve(sequence, num_tokens):
            victims = self._victims(sequence, blocks=1, slots=0)
            if victims:
                self._preempt(victims[0], now)
                self.preemptions.for_class += 1
                continue
            victim = self._latest()
            self._preempt(victim, now)
            self.preemptions.for_blocks += 1
            if victim is sequence:
                return

    def _latest(self) -> Sequence:
        """Who gives way when blocks run out among equals."""
        return max(self.running.values(), key=_class_order)

    def _next_to_stop(self) -> Sequence | None:
        """Who gives way next if blocks run out; nobody who runs alone does."""
        return self._latest() if len(self.running) > 1 else None

    def _chunk(self, sequence: Sequence, wanted: int) -> int:
        is_long = sequence.standing.is_long
        return self._lanes.chunk(sequence.num_planned, wanted, is_long=is_long)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        start = sequence.num_planned
        copies = self.kv.grow(sequence.table, start, start + num_tokens)
        if copies is None:
            return False
        self._rows[sequence.id] = Row(sequence, start, num_tokens, copies)
        self.budget.take(start, num_tokens)
        if num_tokens > 1:
            self._haste.computes(sequence.group.request.slo_class)
        self._spend(sequence, num_tokens)
        return True

    def _extend_all(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._rows:
                self._extend(self._rows[sequence.id])

    def _extend(self, row: Row) -> None:
        """Let a row compute more, if there is anything left of the budget and of the blocks."""
        sequence, end = row.sequence, row.start + row.num_tokens
        more = self.budget.chunk(end, sequence.gap - row.num_tokens)
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        copies = self.kv.grow(sequence.table, end, end + more) if more else None
        if copies is None:
            return
        self.budget.give_back(row.start, row.num_tokens)
        row.num_tokens += more
        row.copies += copies
        self.budget.take(row.start, row.num_tokens)
        self._spend(sequence, more)

    def _spend(self, sequence: Sequence, num_tokens: int) -> None:
        if sequence.standing.is_long and sequence.gap > 1:
            self._lanes.spend(num_tokens)

    def _preempt(self, victim: Sequence, now: Seconds) -> None:
        row = self._rows.pop(victim.id, None)
        if row is not None:
            self.budget.give_back(row.start, row.num_tokens)
            self._spend(victim, -row.num_tokens)
        way = self.swap.stop(victim, is_short=self.ladder.swaps)
        victim.group.account.stopped(is_kept=victim.id in self.swap.kept)
        self.preemptions.count(victim.group.request.slo_class, way)
        self._leave(victim)
        victim.move(State.WAITING)
        victim.standing.num_preempted += 1
        self.queue.push(victim, now)

    def _leave(self, sequence: Sequence) -> None:
        """Its blocks are gone."""
        sequence.forget_steps()
        self.running.remove(sequence)

    def _admit(self, rank: int, now: Seconds, *, as_guests: bool = False) -> bool:
        """Start waiting sequences of a rank in order; False when nobody after them may.

        Guests take free slots only, and hold up nobody.
        """
        if as_guests and self.num_free_slots < 1:
            return False
        if self.budget.num_left < 1 or not self.queue.has(rank):
            return True
        if self.num_free_slots < 1 and not self._may_take_slot(rank):
            return False
        if self.ladder.holds(rank, self.running.values()):
            return False
        coming = Coming(self.kv, self.running.values())
        may_go_on = True
        for _ in range(LOOK_PAST):
            sequence = self.queue.first(rank) if as_guests else self._next(rank)
            if self.budget.num_left < 1 or sequence is None:
                break
            is_barred = as_guests and not self._guests.may_come(sequence)
            if is_barred or waits_for_leader(sequence) or coming.holds_up(sequence):
                self.queue.set_aside(sequence)
            elif self._start(sequence, now):
                coming.add(sequence)
            else:
                may_go_on = False
                break
        self.queue.restore(rank)
        return may_go_on

    def _next(self, rank: int) -> Sequence | None:
        """The first of its rank, without those whose part of the slots or the step is used."""
        sequence = self.queue.first(rank)
        if sequence is None or not (sequence.standing.is_long or sequence.is_lifted):
            return sequence
        with_long, with_lifted = self._guests.room(self.running)
        with_long = with_long and self._lanes.chunk(0, sequence.gap, is_long=True) > 0
        return self.queue.first(rank, with_long=with_long, with_lifted=with_lifted)

    def _may_take_slot(self, rank: int) -> bool:
        """Whether anybody runs who might give way to one of this rank; nearly always nobody does.

        Told by counts, because it is asked in every step while somebody waits.
        """
        return self.running.num_below(rank) > 0 or self._guests.has_long(self.running)

    def _start(self, sequence: Sequence, now: Seconds) -> bool:
        """Give a waiting sequence a slot, blocks and its first rows; False if that cannot be."""
        if self.num_free_slots < 1 and not self._victims(sequence, blocks=0, slots=1):
            return False
        table = self._open_table(sequence)
        sequence.table = table
        num_tokens = self._chunk(sequence, sequence.gap)
        if not (
            num_tokens and self._make_room(sequence, now) and self._reserve(sequence, num_tokens)
        ):
            self.kv.close(table)
            sequence.forget_steps()
            return False
        self.queue.remove(sequence)
        self.swap.release(sequence)
        sequence.standing.waited += now - sequence.standing.waiting_since
        sequence.move(State.RUNNING)
        self.running.add(sequence)
        return True

    def _make_room(self, sequence: Sequence, now: Seconds) -> bool:
        """A slot and blocks for a newcomer, at the cost of less important ones if need be."""
        blocks, slots = self._missing(sequence)
        if blocks <= 0 and slots <= 0:
            return True
        for victim in self._victims(sequence, blocks, slots):
            self._preempt(victim, now)
            self.preemptions.for_class += 1
        return max(self._missing(sequence)) <= 0

    def _missing(self, sequence: Sequence) -> tuple[int, int]:
        limit = self._max_num_seqs
        if self.slots_for(sequence.group.request.slo_class) == self.num_free_slots:
            # Nobody less important runs whose place it could have: it would add to the load.
            limit = self.ladder.slots(limit, sequence.standing.rank)
        blocks = missing_blocks(self.kv, sequence, self.running.values())
        return blocks, len(self.running) + 1 - limit

    def _victims(self, sequence: Sequence, blocks: int, slots: int) -> list[Sequence]:
        """Less important ones to stop; none when all of them would not be enough."""
        request, rank = sequence.group.request, sequence.standing.rank
        is_host = slots > 0 and not sequence.standing.is_long and not sequence.is_lifted
        if not (
            self.running.num_below(request.slo_class)
            or (is_host and self._guests.has_long(self.running))
        ):
            return []
        claim = Claim(request.slo_class, rank, blocks, slots, is_host)
        lent, unprotected = self._guests.of(self.running)
        holders = [
            self._as_holder(s, s.id in lent, its_rank)
            for s in self.running.values()
            if claim.may_stop(
                s.group.request.slo_class,
                its_rank := s.group.request.slo_class if s.id in unprotected else s.standing.rank,
                s.id in lent,
            )
        ]
        return [self.running[number] for number in choose_victims(holders, claim) or ()]

    def _as_holder(self, sequence: Sequence, is_lent: bool, rank: int) -> Holder:
        assert sequence.table is not None, f"sequence {sequence.id} runs without a table"
        blocks = self.kv.num_sole(sequence.table)
        lost = self.swap.loss(sequence, is_short=self.ladder.swaps)
        slo_class, times = sequence.group.request.slo_class, sequence.standing.num_preempted
        return Holder(sequence.id, slo_class, rank, blocks, lost, times, is_lent)

    def _open_table(self, sequence: Sequence) -> BlockTable:
        leader, request = sequence.leader, sequence.group.request
        kept = self.swap.kept.get(sequence.id)
        is_fresh_sibling = leader is not sequence and sequence.num_outputs == 0 and kept is None
        if is_fresh_sibling and leader.table is not None and sequence.num_prompt > 1:
            # The last prompt token is computed again: its logits are what is drawn from.
            computed = sequence.num_prompt - 1
            table = self.kv.fork(leader.table, computed)
            sequence.names = table.hashes
        else:
            use_cache = not (request.sampling.prompt_logprobs and leader is sequence)
            table = self.kv.open(
                sequence.tokens,
                request.cache_salt,
                use_cache=use_cache,
                names=sequence.names,
                swapped=kept,
            )
            computed = table.num_cached
        sequence.num_computed = sequence.num_planned = computed
        return table


def _class_order(sequence: Sequence) -> tuple[int, int]:
    return sequence.group.request.slo_class, sequence.id
