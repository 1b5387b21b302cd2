"""Blocks on two tiers against a model too simple to be wrong: what every block contains.

Decisions pile up until a plan comes out, as they do while the scheduler plans; then the model
carries out the plan in the order that executors keep, and looks at what every table reads.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headway.core.base.units import Seconds
from headway.core.kv.manager import KvManager, Swapped
from headway.core.kv.table import BlockGrid, BlockTable
from headway.core.kv.tiers import TierSettings
from headway.core.messages.path import CacheMiss
from headway.core.messages.step import BlockCopy

SIZE, NUM_BLOCKS, ROWS, WIDTH = 2, 10, 4, 8
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)

Content = tuple[int, ...]  # all tokens up to a block's end


@dataclass
class Running:
    """A sequence with a table: what it knows, and how much of that is computed."""

    table: BlockTable
    tokens: list[int]
    num_computed: int
    num_planned: int
    copies: tuple[BlockCopy, ...] = ()


@dataclass
class Stopped:
    """A sequence whose blocks are kept."""

    kept: Swapped
    tokens: list[int]


class TierMachine(RuleBasedStateMachine):
    """Starts, forks, extends, stops, swaps and resumes sequences; plans come out now and then."""

    @initialize(
        num_host=st.integers(0, 7),
        caching=st.booleans(),
        ttl=st.sampled_from([0.0, 0.0, 3.0]),
    )
    def build(self, num_host: int, caching: bool, ttl: float) -> None:
        self.kv = KvManager(
            NUM_BLOCKS,
            SIZE,
            BlockGrid(ROWS, WIDTH),
            enable_prefix_caching=caching,
            tiers=TierSettings(num_host, Seconds(ttl)),
        )
        self.now = 0.0
        self.ready = 0
        self.running: list[Running] = []
        self.stopped: list[Stopped] = []
        self.device: dict[int, Content] = {}
        self.host: dict[int, Content] = {}

    def has_row(self) -> bool:
        return bool(self.kv.grid.num_free_rows)

    @precondition(lambda self: self.has_row())
    @rule(tokens=PROMPTS, use_cache=st.booleans())
    def start(self, tokens: list[int], use_cache: bool) -> None:
        self._begin(self.kv.open(tokens, b"", use_cache=use_cache), tokens)

    @precondition(lambda self: self.has_row() and self.stopped)
    @rule(data=st.data(), use_cache=st.booleans())
    def resume(self, data: st.DataObject, use_cache: bool) -> None:
        stopped = data.draw(st.sampled_from(self.stopped))
        table = self.kv.open(stopped.tokens, b"", use_cache=use_cache, swapped=stopped.kept)
        found = table.num_cached >= len(stopped.kept.names) * SIZE
        assert found or table.miss is CacheMiss.NO_ROOM
        if self._begin(table, stopped.tokens):
            self.kv.release(stopped.kept)
            self.stopped.remove(stopped)

    @precondition(lambda self: self.has_row() and self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        # Sequences fork when a step is committed: none of their copies is still to be done.
        settled = [each for each in self.running if not each.copies]
        if not settled:
            return
        parent = data.draw(st.sampled_from(settled))
        shared = data.draw(st.integers(0, parent.num_computed))
        tokens = [*parent.tokens[:shared], *data.draw(PROMPTS)][: SIZE * WIDTH]
        if len(tokens) > shared:
            table = self.kv.fork(parent.table, shared)
            self._begin(table, tokens, shared)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=PROMPTS)
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        each = data.draw(st.sampled_from(self.running))
        if each.num_planned > each.num_computed:
            return
        end = min(len(each.tokens) + len(more), SIZE * WIDTH)
        copies = self.kv.grow(each.table, each.num_computed, end)
        if copies is not None:
            each.tokens = [*each.tokens, *more][:end]
            each.num_planned, each.copies = end, copies

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        each = self._pop(data)
        self.kv.close(each.table)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        each = self._pop(data)
        cost = self.kv.swap_cost(each.table, each.num_computed)
        kept = self.kv.swap_out(each.table, each.tokens, each.num_computed)
        assert kept is not None or not cost.fits
        if kept is None:
            self.kv.close(each.table)
        else:
            assert len(kept.names) == each.num_computed // SIZE
            # A token was drawn that is not computed yet, as there always is one.
            self.stopped.append(Stopped(kept, [*each.tokens, 1]))

    @rule(data=st.data(), most=st.integers(0, 4), of_running=st.booleans())
    def copy_ahead(self, data: st.DataObject, most: int, of_running: bool) -> None:
        names: list[bytes] = []
        if self.running and of_running:
            names = data.draw(st.sampled_from(self.running)).table.hashes
        available, used = self.kv.num_available, self.kv.host.used
        num_saved = self.kv.save_ahead(names, most)
        assert 0 <= num_saved <= most
        assert self.kv.num_available == available, "nothing loses its place on the device"
        assert used <= self.kv.host.used <= used + num_saved

    @precondition(lambda self: self.stopped)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.stopped) - 1))
        self.kv.release(self.stopped.pop(index).kept)

    @rule(passed=st.sampled_from([0.0, 1.0, 9.0]))
    def plan(self, passed: float) -> None:
        """A plan comes out and is carried out; the next one is begun."""
        moves = self.kv.take_moves()
        assert len({save.host for save in moves.saves}) == len(moves.saves)
        assert len({load.device for load in moves.loads}) == len(moves.loads)
        for save in moves.saves:
            assert save.host < self.ready, "there is no memory for it"
            self.host[save.host] = self.device[save.device]
        for load in moves.loads:
            self.device[load.device] = self.host[load.host]
        copies = [copy for each in self.running for copy in each.copies]
        copied = {copy.target: self.device[copy.source] for copy in copies}
        assert len(copied) == len(copies)
        self.device.update(copied)
        for each in self.running:
            self._compute(each)
        self.ready += 2
        self.kv.host_ready(self.ready)
        self.now += passed
        self.kv.tick(Seconds(self.now))

    @rule(passed=st.sampled_from([0.0, 1.0, 9.0]))
    def nothing_to_plan(self, passed: float) -> None:
        """No plan comes out: what was decided stays to be done."""
        self.now += passed
        self.kv.tick(Seconds(self.now))

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "kv"):
            kept = [each.kept for each in self.stopped]
            self.kv.check([each.table for each in self.running], kept)

    @precondition(lambda self: self.running or self.stopped)
    @rule()
    def everybody_ends(self) -> None:
        """When nothing runs, everything on the device is free or cached."""
        for each in self.running:
            self.kv.close(each.table)
        for stopped in self.stopped:
            self.kv.release(stopped.kept)
        self.running, self.stopped = [], []
        assert self.kv.num_available == NUM_BLOCKS

    def _begin(self, table: BlockTable, tokens: list[int], start: int | None = None) -> bool:
        start = table.num_cached if start is None else start
        assert start < len(tokens)
        copies = self.kv.grow(table, start, len(tokens))
        if copies is None:
            self.kv.close(table)
            return False
        self.running.append(Running(table, tokens, start, len(tokens), copies))
        return True

    def _compute(self, each: Running) -> None:
        """What the sequence reads is right; what it computes is written, and may be shared."""
        size, blocks = SIZE, each.table.blocks
        for index in range(-(-each.num_computed // size)):
            end = min(each.num_computed, (index + 1) * size)
            assert self.device[blocks[index]][:end] == tuple(each.tokens[:end])
        if each.num_planned > each.num_computed:
            assert self.kv.is_writable(each.table, each.num_computed, each.num_planned)
        for index in range(each.num_computed // size, -(-each.num_planned // size)):
            end = min(each.num_planned, (index + 1) * size)
            self.device[blocks[index]] = tuple(each.tokens[:end])
        each.num_computed, each.copies = each.num_planned, ()
        self.kv.fill(each.table, each.tokens, each.num_computed)

    def _pop(self, data: st.DataObject) -> Running:
        index = data.draw(st.integers(0, len(self.running) - 1))
        return self.running.pop(index)


TestTiers = TierMachine.TestCase
