"""Which replica of another's server gets a request: least load, and warmth within bounds.

Of such a server neither rates nor token ids are known: load is counted in requests here, and a
prompt is known by its text, where `policy` counts seconds and tokens for engines of ours.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

FULL_KV = 0.97  # from here on a server is about to preempt: as if one more waited there


class Candidate(NamedTuple):
    """One replica that may be sent a request now."""

    name: str
    in_flight: int  # sent from here and not ended
    told: int = 0  # running and waiting there that are not ours, as it last said
    kv_usage: float = 0.0  # 0 .. 1, as it last said

    @property
    def load(self) -> int:
        """Requests that a new one would share it with."""
        return self.in_flight + self.told + (1 if self.kv_usage >= FULL_KV else 0)


def choose(
    candidates: Sequence[Candidate],
    matches: Mapping[str, int],
    names: Sequence[bytes],
    max_skew: int,
    turn: int = 0,
) -> str:
    """The name of the warmest of those that have at most `max_skew` more to do than the idlest.

    matches  blocks of the text's beginning that each has seen; `names` are those of the text

    Without a warm one, that is the idlest; among equals the one that a hash of the text's beginning
    names, so that gateways that know nothing of each other agree, or `turn` for a short text.
    """
    assert candidates, "nobody to choose from"
    seed = crc32(names[0]) if names else turn
    least = min(each.load for each in candidates)
    near = [each for each in candidates if each.load <= least + max_skew]
    best = max(matches.get(each.name, 0) for each in near)
    warm = [each for each in near if matches.get(each.name, 0) == best]
    return min(warm, key=lambda each: (each.load, _rank(each.name, seed))).name


def _rank(name: str, seed: int) -> int:
    """Highest random weight: each text has an order of its own over the replicas."""
    digest = blake2b(f"{seed}|{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
