"""Who holds which block: free list, reference counts, and blocks kept for the prefix cache.

A block is in exactly one of three states:

    free        nobody holds it, its content means nothing
    referenced  one or more block tables hold it
    cached      nobody holds it, but the prefix tree retains its content: evictable
"""

from array import array
from collections.abc import Iterable

from headway.core.base.units import Blocks


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for; nothing was taken."""


class BlockPool:
    """Counts references to a fixed number of blocks; knows nothing of their content."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = array("i", bytes(4 * num_blocks))
        self._retained = bytearray(num_blocks)
        # Taken from the end: a block freed a moment ago is the likeliest to be in a CPU cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_cached = 0
        self._num_held = 0  # references to all blocks

    @property
    def num_free(self) -> Blocks:
        """Blocks whose content means nothing."""
        return Blocks(len(self._free))

    @property
    def num_cached(self) -> Blocks:
        """Blocks that nobody holds and the prefix tree retains."""
        return Blocks(self._num_cached)

    @property
    def num_shared(self) -> Blocks:
        """References beyond the first of each block: blocks that are there for one more table."""
        return Blocks(self._num_held - (self.num_blocks - len(self._free) - self._num_cached))

    def take(self, count: int) -> tuple[int, ...]:
        """Take `count` free blocks with one reference each.

        Raises OutOfBlocks, and takes none, when fewer are free.
        """
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._references[block] = 1
        self._num_held += count
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of `blocks`, which are referenced or cached now."""
        for block in blocks:
            if self._references[block] == 0:
                assert self._retained[block], f"block {block} is free and cannot be shared"
                self._num_cached -= 1
            self._references[block] += 1
            self._num_held += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference from each; what nobody holds becomes cached or free."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more than held"
            self._references[block] -= 1
            self._num_held -= 1
            if self._references[block] == 0:
                if self._retained[block]:
                    self._num_cached += 1
                else:
                    self._free.append(block)

    def retain(self, block: int) -> None:
        """The prefix tree now keeps this referenced block's content."""
        assert self._references[block] > 0, f"block {block} is retained but not held"
        assert not self._retained[block], f"block {block} is retained twice"
        self._retained[block] = 1

    def forget(self, block: int) -> None:
        """The prefix tree no longer keeps this block; it is free if nobody holds it."""
        assert self._retained[block], f"block {block} is not retained"
        self._retained[block] = 0
        if self._references[block] == 0:
            self._num_cached -= 1
            self._free.append(block)

    def num_references(self, block: int) -> int:
        """Block tables that hold the block."""
        return self._references[block]

    def is_idle(self, block: int) -> bool:
        """True when no block table holds the block."""
        return self._references[block] == 0

    def is_exclusive(self, block: int) -> bool:
        """True when one table holds it and the prefix tree does not: it may be written."""
        return self._references[block] == 1 and not self._retained[block]

    def is_sole(self, block: int) -> bool:
        """True when exactly one table holds the block: it is available once that one closes."""
        return self._references[block] == 1

    def check(self) -> None:
        """Conservation: free + referenced + cached = all, and a block is never two of them."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        idle = {b for b in range(self.num_blocks) if self._references[b] == 0}
        cached = {b for b in idle if self._retained[b]}
        assert free == idle - cached, f"idle blocks neither free nor cached: {idle ^ free ^ cached}"
        assert len(cached) == self._num_cached, f"{len(cached)} cached, {self._num_cached} counted"
        held = sum(self._references)
        assert held == self._num_held, f"{held} references, {self._num_held} counted"
