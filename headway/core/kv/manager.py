"""The only door to KV accounting: open, fork, grow, fill, swap and close block tables."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.base.units import Blocks, Seconds, Tokens, blocks_for
from headway.core.kv import hashing
from headway.core.kv.blocks import BlockPool
from headway.core.kv.cache import PrefixCache
from headway.core.kv.table import BlockGrid, BlockTable
from headway.core.kv.tiers import HostLedger, Moves, TierSettings
from headway.core.messages.path import CacheMiss
from headway.core.messages.step import BlockCopy


class Swapped(NamedTuple):
    """What a sequence that was swapped out left behind, pinned until `release`."""

    root: bytes  # of its chain of names
    names: tuple[bytes, ...]  # of its leading full blocks


class SwapCost(NamedTuple):
    """What swapping a sequence out would take, and what it would save."""

    num_blocks: Blocks  # to copy to the host tier
    num_tokens: Tokens  # that would be computed again if they were dropped instead
    fits: bool  # the host tier has room


class TierUse(NamedTuple):
    """The host tier in numbers."""

    used: Blocks
    total: Blocks  # at most; memory is taken as it is needed
    num_saved: int  # blocks, since start
    num_loaded: int


class KvManager:
    """Gives sequences their blocks, shares prefixes, and evicts what nobody holds.

    Raises nothing when memory is short: `grow` says no and changes nothing, and its
    caller decides who has to wait.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        grid: BlockGrid,
        *,
        model: str = "",
        enable_prefix_caching: bool = True,
        tiers: TierSettings | None = None,
    ) -> None:
        self.block_size = block_size
        self.grid = grid
        self._tiers = tiers or TierSettings()
        self._pool = BlockPool(num_blocks)
        self._ledger = HostLedger(self._tiers.num_host_blocks)
        self._cache = PrefixCache(self._pool, self._ledger)
        self._model = model
        self._caching = enable_prefix_caching
        self._num_roots = 0  # that were given out because nothing is shared

    @property
    def num_blocks(self) -> Blocks:
        """All blocks there are."""
        return Blocks(self._pool.num_blocks)

    @property
    def num_free(self) -> Blocks:
        """Blocks with no content worth keeping."""
        return self._pool.num_free

    @property
    def num_cached(self) -> Blocks:
        """Blocks that only the prefix cache keeps; they are evicted when needed."""
        return self._pool.num_cached

    @property
    def num_shared(self) -> Tokens:
        """Positions that open tables list beyond once: their K and V are there for several."""
        return Tokens(self._pool.num_shared * self.block_size)

    @property
    def num_available(self) -> Blocks:
        """Blocks that a sequence could get now."""
        return Blocks(self._pool.num_free + self._pool.num_cached)

    @property
    def host(self) -> TierUse:
        """The host tier's state."""
        ledger = self._ledger
        used = Blocks(ledger.num_ready - ledger.num_free)
        return TierUse(used, Blocks(ledger.limit), ledger.num_saved, ledger.num_loaded)

    def tick(self, now: Seconds) -> None:
        """A plan is begun: cached blocks that nobody has used for the TTL are dropped."""
        self._ledger.forget_reads()
        self._cache.tree.now = now
        if self._tiers.ttl:
            self._cache.expire(Seconds(now - self._tiers.ttl))

    def host_ready(self, num_blocks: int) -> None:
        """The executor has memory for so many blocks of the host tier."""
        self._ledger.set_ready(num_blocks)

    def take_moves(self) -> Moves:
        """What the plan that comes out now has to move; once a plan."""
        return self._cache.take_moves()

    def open(
        self,
        tokens: Sequence[int],
        salt: bytes,
        *,
        use_cache: bool = True,
        names: list[bytes] | None = None,
        swapped: Swapped | None = None,
    ) -> BlockTable:
        """A table for a sequence that will compute `tokens`, with its cached prefix in it.

        At least the last token is always left to compute, because its logits are needed.
        `num_cached` of the table says how many tokens need not be computed, blocks that the
        next plan loads from the host tier included. `names` are those of the tokens' leading
        blocks as far as they are known; the table goes on with that very list, so that a
        sequence that is opened again has nothing named twice. With `swapped`, what the
        sequence itself has computed is found even where nothing is shared.
        """
        root = self._root(salt) if swapped is None else swapped.root
        table = BlockTable(self.grid.take_row(), root)
        if names is not None:
            table.hashes = names
        shares = self._caching and use_cache
        if not shares and swapped is None:
            table.miss = CacheMiss.NOT_SHARED
            return table
        usable = (len(tokens) - 1) // self.block_size
        if swapped is not None and not shares:
            usable = min(usable, len(swapped.names))
        self._name(table, tokens, usable)
        wanted = table.hashes[:usable]
        num_known = self._take_known(table, wanted)
        table.num_named = len(table.blocks)
        table.num_cached = len(table.blocks) * self.block_size
        if len(table.blocks) < num_known:
            table.miss = CacheMiss.NO_ROOM
        elif num_known < len(wanted):
            table.miss = self._why_missed(table, tokens, wanted[num_known])
        return table

    def swap_cost(self, table: BlockTable, num_computed: int) -> SwapCost:
        """What `swap_out` of the table would cost now; its partial last block is lost anyway."""
        full = num_computed // self.block_size
        nodes = [self._cache.tree.get(name) for name in table.hashes[:full]]
        is_saved = [node is not None and node.is_on_host for node in nodes]
        is_saved += [False] * (full - len(nodes))
        num_lost = sum(
            self._pool.is_sole(block) and not saved
            for block, saved in zip(table.blocks, is_saved, strict=False)
        )
        num_blocks = is_saved.count(False)
        room = self._cache.num_host_available_beside([node for node in nodes if node is not None])
        fits = full > 0 and num_blocks <= room
        return SwapCost(Blocks(num_blocks), Tokens(num_lost * self.block_size), fits)

    def swap_out(
        self, table: BlockTable, tokens: Sequence[int], num_computed: int
    ) -> Swapped | None:
        """Keep the sequence's full computed blocks through the host tier, and close its table.

        None, and the table stays open, when there is nothing to keep or no room for it.
        """
        full = min(num_computed, len(tokens)) // self.block_size
        if full == 0 or not self._ledger.limit:
            return None
        self._name(table, tokens, full)
        names = tuple(table.hashes[:full])
        for index, name in enumerate(names):
            self._cache.insert(name, names[index - 1] if index else None, table.blocks[index])
        nodes = self._cache.tree.match(names)
        assert len(nodes) == full, "a block that was computed cannot be named"
        is_kept = self._cache.keep(nodes)
        if is_kept:
            self.close(table)
        elif not self._caching:
            self._cache.discard(nodes[-1])
        return Swapped(table.root, names) if is_kept else None

    def save_ahead(self, names: Sequence[bytes], most: int) -> int:
        """Plan copies to the host of up to `most` blocks that will soon have to go; how many.

        First of those that would be evicted next, then of the blocks of these names, whose
        sequence gives way next. Nothing loses its place on the device for it.
        """
        if not self._ledger.limit or most < 1:
            return 0
        num_saved = self._cache.save_idle(most)
        return num_saved + self._cache.save_some(self._cache.tree.match(names), most - num_saved)

    def release(self, swapped: Swapped) -> None:
        """Its sequence runs again, or has ended: nothing is pinned for it any more."""
        nodes = self._cache.tree.match(swapped.names)
        assert len(nodes) == len(swapped.names), "a pinned block was lost"
        self._cache.unpin(nodes)
        if not self._caching:
            self._cache.discard(nodes[-1])

    def next_to_compute(
        self, tokens: Sequence[int], salt: bytes, names: list[bytes]
    ) -> bytes | None:
        """Name of the first full block of `tokens` that is not cached.

        None when all that could be shared is there, or nothing is ever shared. `names` as in
        `open`.
        """
        if not self._caching:
            return None
        table = BlockTable(0, hashing.root(self._model, salt))
        table.hashes = names
        usable = (len(tokens) - 1) // self.block_size
        self._name(table, tokens, usable)
        num_found = len(self._cache.tree.match(names[:usable]))
        return names[num_found] if num_found < usable else None

    def fork(self, parent: BlockTable, num_tokens: int) -> BlockTable:
        """A table that shares the parent's blocks for its first `num_tokens` computed tokens.

        The last of them may be partly filled: whoever writes to it first gets a copy. No copy
        of the parent's may be left to do: all copies of a plan are done at once.
        """
        table = BlockTable(self.grid.take_row(), parent.root)
        shared = parent.blocks[: blocks_for(num_tokens, self.block_size)]
        self._pool.share(shared)
        self._append(table, shared)
        table.hashes = parent.hashes[: num_tokens // self.block_size]
        table.num_named = min(parent.num_named, len(table.hashes))
        return table

    def grow(self, table: BlockTable, start: int, end: int) -> tuple[BlockCopy, ...] | None:
        """Make positions start .. end - 1 writable; returns the copies to do first.

        Blocks among them that are shared or cached are replaced by copies. Returns None,
        and leaves the table as it was, when there are not enough blocks.
        """
        first = start // self.block_size
        is_there = end - start == 1 and first < len(table.blocks)
        if is_there and self._pool.is_exclusive(table.blocks[first]):
            return ()  # nearly every decode
        shared = [
            index
            for index in range(first, len(table.blocks))
            if not self._pool.is_exclusive(table.blocks[index])
        ]
        missing = max(0, blocks_for(end, self.block_size) - len(table.blocks))
        if not self._make_free(len(shared) + missing):
            return None
        taken = self._pool.take(len(shared) + missing)
        copies = []
        for index, target in zip(shared, taken, strict=False):
            source = table.blocks[index]
            self._ledger.protect(source)
            table.blocks[index] = target
            self.grid.write(table.row, index, target)
            self._pool.release((source,))
            copies.append(BlockCopy(source, target))
        self._append(table, taken[len(shared) :])
        return tuple(copies)

    def fill(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """The first `num_computed` of `tokens` are computed: full blocks become sharable.

        A block is named only once it is full: a partial block still changes, and two
        sequences that share it would then read each other's tokens.
        """
        if not self._caching:
            return
        full = num_computed // self.block_size
        self._name(table, tokens, full)
        for index in range(table.num_named, full):
            above = table.hashes[index - 1] if index else None
            is_new = self._cache.insert(table.hashes[index], above, table.blocks[index])
            if is_new and index == 0:
                self._cache.misses.began(table.root, self._slice(tokens, 0))
        table.num_named = max(table.num_named, full)

    def close(self, table: BlockTable) -> None:
        """Give back the table's blocks and row; named blocks stay cached until evicted."""
        self._cache.tree.touch(table.hashes[: len(table.blocks)])
        self._pool.release(table.blocks)
        self._cache.abandon(table.blocks)
        self.grid.give_back(table.row)
        table.blocks = []
        table.hashes = []
        table.num_named = 0

    def check(self, tables: Sequence[BlockTable], swapped: Sequence[Swapped] = ()) -> None:
        """Conservation: no block leaks on any tier, none is owned twice, nothing pinned is lost.

        tables   all that are open
        swapped  all that are not released
        """
        self._pool.check()
        self._cache.check()
        for table in tables:
            shown = self.grid.read(table.row, len(table.blocks))
            assert shown == table.blocks, f"row {table.row} shows {shown}, holds {table.blocks}"
        owners = Counter(block for table in tables for block in table.blocks)
        assert self.num_available == self.num_blocks - len(owners), "blocks leaked"
        for block in range(self.num_blocks):
            assert self._pool.num_references(block) == owners[block], "references and owners differ"
        rows = [table.row for table in tables]
        assert len(set(rows)) == len(rows), "two sequences share a row"
        pins = Counter(name for each in swapped for name in each.names)
        found = {node.name: node.pins for node in self._cache.tree if node.pins}
        assert found == pins, "what is pinned and what was swapped out differ"

    def num_sole(self, table: BlockTable) -> Blocks:
        """Blocks that become available when this table alone closes; O(blocks)."""
        return Blocks(sum(self._pool.is_sole(block) for block in table.blocks))

    def is_writable(self, table: BlockTable, start: int, end: int) -> bool:
        """Exclusive write: every block of positions start .. end - 1 is this table's alone."""
        first, last = start // self.block_size, blocks_for(end, self.block_size)
        return last <= len(table.blocks) and all(
            self._pool.is_exclusive(block) for block in table.blocks[first:last]
        )

    def _make_free(self, count: int) -> bool:
        """Evict cached blocks until `count` are free; False when that is not possible."""
        if count > self.num_available:
            return False
        while self._pool.num_free < count:
            if not self._cache.evict():
                return False  # what is cached lies above blocks that are still held
        return True

    def _take_known(self, table: BlockTable, names: Sequence[bytes]) -> int:
        """Put what is known of the chain into the table; how many of it are known.

        They may be more than the table gets: some are in the host tier, without room here.
        """
        known = self._cache.tree.match(names)
        num_here = sum(node.is_on_device for node in known)  # those come first
        here = [node.block for node in known[:num_here]]
        self._pool.share(here)
        loaded = self._cache.load(known[num_here:])
        self._append(table, [*here, *loaded])
        table.num_cached_host = len(loaded) * self.block_size
        return len(known)

    def _why_missed(self, table: BlockTable, tokens: Sequence[int], name: bytes) -> CacheMiss:
        misses = self._cache.misses
        if table.blocks:
            return misses.why(name)
        return misses.why_first(name, table.root, self._slice(tokens, 0))

    def _root(self, salt: bytes) -> bytes:
        """Where names begin; without a cache every table and its forks have their own.

        So a sequence that is swapped out finds its blocks again, and nobody else does.
        """
        if self._caching:
            return hashing.root(self._model, salt)
        self._num_roots += 1
        return hashing.root(self._model, self._num_roots.to_bytes(8, "little"))

    def _name(self, table: BlockTable, tokens: Sequence[int], count: int) -> None:
        """Names of the leading `count` blocks of `tokens`, those that are not known yet."""
        while len(table.hashes) < count:
            above = table.hashes[-1] if table.hashes else table.root
            table.hashes.append(hashing.chain(above, self._slice(tokens, len(table.hashes))))

    def _append(self, table: BlockTable, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.grid.write(table.row, len(table.blocks), block)
            table.blocks.append(block)

    def _slice(self, tokens: Sequence[int], index: int) -> Sequence[int]:
        return tokens[index * self.block_size : (index + 1) * self.block_size]
