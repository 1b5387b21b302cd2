"""The only door to KV accounting: open, fork, grow, fill and close block tables."""

from collections.abc import Sequence

from headway.core.base.units import Blocks, blocks_for
from headway.core.kv import hashing
from headway.core.kv.blocks import BlockPool
from headway.core.kv.prefix import PrefixTree
from headway.core.kv.table import BlockGrid, BlockTable
from headway.core.messages.step import BlockCopy


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
    ) -> None:
        self.block_size = block_size
        self.grid = grid
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree()
        self._model = model
        self._caching = enable_prefix_caching

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
    def num_available(self) -> Blocks:
        """Blocks that a sequence could get now."""
        return Blocks(self._pool.num_free + self._pool.num_cached)

    def open(
        self,
        tokens: Sequence[int],
        salt: bytes,
        *,
        use_cache: bool = True,
        names: list[bytes] | None = None,
    ) -> BlockTable:
        """A table for a sequence that will compute `tokens`, with its cached prefix in it.

        At least the last token is always left to compute, because its logits are needed.
        `num_cached` of the table says how many tokens need not be computed. `names` are those
        of the tokens' leading blocks as far as they are known; the table goes on with that
        very list, so that a sequence that is opened again has nothing named twice.
        """
        table = BlockTable(self.grid.take_row(), hashing.root(self._model, salt))
        if names is not None:
            table.hashes = names
        if not (self._caching and use_cache):
            return table
        usable = (len(tokens) - 1) // self.block_size
        self._name(table, tokens, usable)
        found = self._tree.match(table.hashes[:usable])
        self._pool.share(found)
        self._append(table, found)
        table.num_named = len(found)
        table.num_cached = len(found) * self.block_size
        return table

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
        num_found = len(self._tree.match(names[:usable]))
        return names[num_found] if num_found < usable else None

    def fork(self, parent: BlockTable, num_tokens: int) -> BlockTable:
        """A table that shares the parent's blocks for its first `num_tokens` computed tokens.

        The last of them may be partly filled: whoever writes to it first gets a copy.
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
            block, name = table.blocks[index], table.hashes[index]
            if self._tree.insert(name, table.hashes[index - 1] if index else None, block):
                self._pool.retain(block)
        table.num_named = max(table.num_named, full)

    def close(self, table: BlockTable) -> None:
        """Give back the table's blocks and row; named blocks stay cached until evicted."""
        self._tree.touch(table.hashes[: len(table.blocks)])
        self._pool.release(table.blocks)
        self.grid.give_back(table.row)
        table.blocks = []
        table.hashes = []
        table.num_named = 0

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Conservation over `tables`, all that are open: no block leaks, none is owned twice."""
        self._pool.check()
        self._tree.check()
        for table in tables:
            shown = self.grid.read(table.row, len(table.blocks))
            assert shown == table.blocks, f"row {table.row} shows {shown}, holds {table.blocks}"
        held = {block for table in tables for block in table.blocks}
        assert self.num_available == self.num_blocks - len(held), "blocks leaked"
        rows = [table.row for table in tables]
        assert len(set(rows)) == len(rows), "two sequences share a row"

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
            block = self._tree.evict(self._pool.is_idle)
            if block is None:
                return False  # what is cached lies above blocks that are still held
            self._pool.forget(block)
        return True

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
