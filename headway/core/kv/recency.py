"""Least recently used first: a heap whose stale entries are dropped on the way."""

import heapq
from collections.abc import Mapping
from typing import Protocol, TypeVar

# Entries that are kept for each node before stale ones are thrown out: the work of that is
# spread over as many pushes, and below the floor it is not worth it.
ENTRIES_A_NODE = 2
FEWEST_ENTRIES = 64


class Used(Protocol):
    """What has a time of last use."""

    last_used: int


Item = TypeVar("Item", bound=Used)


class Recency:
    """Candidates in the order of their last use; O(log n) amortized.

    An entry is stale when its item is gone or was used again; then it is passed over.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, last_used: int, name: bytes, items: Mapping[bytes, Used]) -> None:
        """Add an entry; `items` are all that there are, by name."""
        heapq.heappush(self._heap, (last_used, name))
        if len(self._heap) > FEWEST_ENTRIES + ENTRIES_A_NODE * len(items):
            # Without evictions nothing else would ever drop the stale ones.
            current = {entry for entry in self._heap if self._is_current(entry, items)}
            self._heap = sorted(current)

    def pop(self, items: Mapping[bytes, Item]) -> Item | None:
        """Take out the oldest entry that is not stale; None when there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry, items):
                return items[entry[1]]
        return None

    @staticmethod
    def _is_current(entry: tuple[int, bytes], items: Mapping[bytes, Used]) -> bool:
        item = items.get(entry[1])
        return item is not None and item.last_used == entry[0]
