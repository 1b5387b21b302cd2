"""The prefix tree: which full blocks of computed tokens are there to be shared.

A radix tree over token ids whose edges are whole blocks: a node is a block, named by the
chained hash of all tokens up to its end, so a path from the root spells a prefix. Only
leaves are evicted, least recently used first, so a prefix never loses its middle.
Source: Zheng et al. 2024 (SGLang, RadixAttention), section 3.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Candidates for eviction that are kept for each node before stale ones are thrown out: the
# work of that is spread over as many pushes, and below the floor it is not worth it.
CANDIDATES_A_NODE = 2
FEWEST_CANDIDATES = 64


@dataclass(slots=True)
class _Node:
    block: int
    parent: bytes | None  # None: a child of the root
    num_children: int
    last_used: int  # ticks of the tree's own counter, not time


class PrefixTree:
    """Maps chains of block hashes to blocks. It holds no references: the pool does that."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self._ticks = 0
        # Candidates for eviction, oldest first. Entries go stale when a node is used or
        # evicted; they are dropped when they come up, or when they are too many.
        self._heap: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_candidates(self) -> int:
        """Entries kept to find what to evict, stale ones included; bounded by the nodes."""
        return len(self._heap)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of the chain `hashes`, root first."""
        blocks: list[int] = []
        for name in hashes:
            node = self._nodes.get(name)
            if node is None:
                break
            blocks.append(node.block)
        return blocks

    def insert(self, name: bytes, parent: bytes | None, block: int) -> bool:
        """Make `block` a node below `parent`; False when it cannot be one.

        That is when the name is known already (another sequence computed the same tokens)
        or when the parent has been evicted.
        """
        if name in self._nodes:
            return False
        if parent is not None:
            above = self._nodes.get(parent)
            if above is None:
                return False
            above.num_children += 1
        self._ticks += 1
        self._nodes[name] = _Node(block, parent, 0, self._ticks)
        return True

    def touch(self, names: Sequence[bytes]) -> None:
        """Mark a path, root first, as just used; its deepest block is the first to go."""
        for name in reversed(names):
            node = self._nodes.get(name)
            if node is not None:
                self._ticks += 1
                node.last_used = self._ticks
                heapq.heappush(self._heap, (node.last_used, name))
        if len(self._heap) > FEWEST_CANDIDATES + CANDIDATES_A_NODE * len(self._nodes):
            # Without evictions nothing else would ever drop the stale ones.
            self._heap = [(node.last_used, name) for name, node in self._nodes.items()]
            heapq.heapify(self._heap)

    def evict(self, is_idle: Callable[[int], bool]) -> int | None:
        """Remove the least recently used leaf that nobody holds; returns its block, or None.

        O(log n) amortized: an entry that comes up too early moves to the end of the line.
        """
        for _ in range(len(self._heap)):
            used, name = heapq.heappop(self._heap)
            node = self._nodes.get(name)
            if node is None or node.last_used != used or node.num_children:
                continue  # stale, or its last child will push it again
            if is_idle(node.block):
                return self._remove(name, node)
            self.touch((name,))  # held, so in use: to the end of the line
        return None

    def check(self) -> None:
        """Children are counted right and every parent is there."""
        children = dict.fromkeys(self._nodes, 0)
        for node in self._nodes.values():
            if node.parent is not None:
                assert node.parent in self._nodes, "a node outlived its parent"
                children[node.parent] += 1
        for name, count in children.items():
            assert self._nodes[name].num_children == count, "children are miscounted"
        blocks = [node.block for node in self._nodes.values()]
        assert len(set(blocks)) == len(blocks), "two nodes share a block"

    def _remove(self, name: bytes, node: _Node) -> int:
        del self._nodes[name]
        if node.parent is not None:
            above = self._nodes[node.parent]
            above.num_children -= 1
            if above.num_children == 0:
                heapq.heappush(self._heap, (above.last_used, node.parent))
        return node.block
