"""Why a prompt was not found in the prefix cache: a short memory of what was there."""

from array import array
from collections.abc import Sequence
from typing import TypeVar

from headway.core.messages.path import CacheMiss

# Names that are remembered, of each kind; together they stay below two megabytes.
NUM_REMEMBERED = 4096

Value = TypeVar("Value")


class MissMemory:
    """Names that were dropped lately, and which salts the latest first blocks came under."""

    def __init__(self) -> None:
        self._dropped: dict[bytes, None] = {}
        self._roots: dict[bytes, bytes] = {}  # tokens of a first block -> root of its chain

    def lost(self, name: bytes) -> None:
        """A node was dropped."""
        _remember(self._dropped, name, None)

    def found_again(self, name: bytes) -> None:
        """It was computed again."""
        self._dropped.pop(name, None)

    def began(self, root: bytes, tokens: Sequence[int]) -> None:
        """A chain's first block, of these tokens, was computed under `root`."""
        _remember(self._roots, _spelled(tokens), root)

    def why(self, missing: bytes) -> CacheMiss:
        """Why there is no block named `missing`, whose predecessors were found."""
        return CacheMiss.EVICTED if missing in self._dropped else CacheMiss.DIFFERS

    def why_first(self, missing: bytes, root: bytes, tokens: Sequence[int]) -> CacheMiss:
        """The same for a chain's first block, of these tokens."""
        if missing in self._dropped:
            return CacheMiss.EVICTED
        other = self._roots.get(_spelled(tokens), root)
        return CacheMiss.DIFFERS if other == root else CacheMiss.OTHER_SALT


def _spelled(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()


def _remember(memory: dict[bytes, Value], name: bytes, value: Value) -> None:
    memory.pop(name, None)
    memory[name] = value
    if len(memory) > NUM_REMEMBERED:
        del memory[next(iter(memory))]
