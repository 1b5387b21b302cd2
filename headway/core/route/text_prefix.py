"""Which replica has seen the beginning of a text: for servers whose token ids are not known here.

A text is cut into blocks of equal length; each block's key depends on all before it, as in a
prefix cache over token ids. What differs in a block differs in every later one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BLOCK_BYTES = 512  # about 128 tokens; a system prompt that matters is several of these
MAX_BLOCKS = 128  # of one text: 64 KiB, after which nothing more is told apart
DEFAULT_ENTRIES = 65_536  # keys kept; 8 bytes each and what Python adds

Chain = tuple[bytes, ...]


def chain_of(parts: Iterable[bytes], salt: bytes = b"") -> Chain:
    """The keys of all whole blocks of the joined parts, first to last.

    salt  texts with different salts never have a key in common
    """
    text = bytearray()
    for part in parts:
        text += part
        if len(text) >= BLOCK_BYTES * MAX_BLOCKS:
            break
    keys = []
    last = blake2b(salt, digest_size=8).digest()
    for start in range(0, min(len(text), BLOCK_BYTES * MAX_BLOCKS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = blake2b(last + text[start : start + BLOCK_BYTES], digest_size=8).digest()
        keys.append(last)
    return tuple(keys)


class PrefixIndex:
    """Who was sent what, the least recently used forgotten first."""

    def __init__(self, max_entries: int = DEFAULT_ENTRIES) -> None:
        self._max_entries = max_entries
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def note(self, chain: Chain, replica: str) -> None:
        """This replica computes that text now."""
        # Last block first, so that the beginning, which others share, is forgotten last.
        for key in reversed(chain):
            self._holders.setdefault(key, set()).add(replica)
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_entries:
            self._holders.popitem(last=False)

    def matches(self, chain: Chain, replicas: Sequence[str]) -> dict[str, int]:
        """Blocks of the text's beginning that each of these replicas has seen."""
        found = dict.fromkeys(replicas, 0)
        alive = set(replicas)
        for depth, key in enumerate(chain, 1):
            alive &= self._holders.get(key, set())
            if not alive:
                break
            for name in alive:
                found[name] = depth
        return found

    def forget(self, replica: str) -> None:
        """Its cache is gone: it was restarted, or away."""
        for key in [key for key, holders in self._holders.items() if replica in holders]:
            holders = self._holders[key]
            holders.discard(replica)
            if not holders:
                del self._holders[key]
