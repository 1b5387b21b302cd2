"""What each replica holds of the prompts that were sent to it, as far as its router knows.

A radix tree over chunks of prompts, kept as the names of its nodes: the name of a chunk covers all
before it and whose it is (`core.kv.hashing`), so that one tenant's prompt never matches another's.
Chunks are longer than KV blocks: a router names every prompt, and coarse names suffice to choose.
"""

from collections import OrderedDict
from collections.abc import Sequence

from headway.core.kv import hashing

CHUNK = 32  # tokens
MOST_CHUNKS = 512  # of one prompt that are named: what comes later decides nothing


def chunk_names(model: str, salt: bytes, tokens: Sequence[int]) -> tuple[bytes, ...]:
    """Names of a prompt's leading full chunks; about 1 µs a chunk."""
    name = hashing.root(model, salt)
    names = []
    for start in range(0, min(len(tokens), MOST_CHUNKS * CHUNK) - CHUNK + 1, CHUNK):
        name = hashing.chain(name, tokens[start : start + CHUNK])
        names.append(name)
    return tuple(names)


class PrefixIndex:
    """The chunks that each replica was sent lately, the oldest forgotten first.

    A chunk is used whenever one behind it is, so what is left of a prompt is always its beginning.
    """

    def __init__(self, most_chunks: int) -> None:
        """most_chunks  that a replica is taken to hold"""
        assert most_chunks > 0, most_chunks
        self._most = most_chunks
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def add(self, replica: str, names: Sequence[bytes]) -> None:
        """The replica was sent a prompt of these chunks."""
        held = self._held.setdefault(replica, OrderedDict())
        for name in reversed(names):
            held[name] = None
            held.move_to_end(name)
        while len(held) > self._most:
            held.popitem(last=False)

    def match(self, replica: str, names: Sequence[bytes]) -> int:
        """How many of the leading chunks the replica holds."""
        held = self._held.get(replica)
        if not held:
            return 0
        for count, name in enumerate(names):
            if name not in held:
                return count
        return len(names)

    def forget(self, replica: str) -> None:
        """Its cache is gone."""
        self._held.pop(replica, None)
