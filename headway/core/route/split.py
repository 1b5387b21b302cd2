"""Which arm of a split somebody is in: by a hash, so that every gateway says the same for ever.

Each arm draws, for this key alone, the time at which it would be first in a race with its weight
as its speed; the first one wins. An arm then wins a share of exactly its weight over the weights
of all, and when one arm's weight grows, or an arm joins, the only keys that move are those that
move to it: what the other arms have drawn does not depend on it. (Weighted rendezvous hashing.)
"""

import math
from collections.abc import Mapping
from hashlib import blake2b

DRAW_BITS = 52  # so that a draw, half a step off both ends, is exact as a float
STEPS = float(1 << DRAW_BITS)


def draw(split: str, arm: str, key: str) -> float:
    """A number in (0, 1), the same for the same three texts in every process and release."""
    text = "\0".join((split, arm, key)).encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=8, person=b"headway-arm").digest()
    number = int.from_bytes(digest, "big") >> (64 - DRAW_BITS)
    return (number + 0.5) / STEPS


def pick(split: str, weights: Mapping[str, float], key: str) -> str:
    """The key's arm; those of weight 0 get nobody. At least one weight is above 0."""
    times = {
        arm: -math.log(draw(split, arm, key)) / weight
        for arm, weight in weights.items()
        if weight > 0
    }
    return min(times, key=times.__getitem__)
