"""Randomness as a function: a draw is a hash of seed, choice and output position.

Nothing has to be saved, swapped or handed over, and a draw never depends on which other
sequences share its step.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011: Philox4x32 with 10 rounds.
"""

MASK32 = 0xFFFFFFFF
NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the two key words after each round


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Four random 32-bit words out of four counter words and two key words of 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & MASK32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & MASK32,
        )
        k0 = (k0 + _WEYL[0]) & MASK32
        k1 = (k1 + _WEYL[1]) & MASK32
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """The draw of one output position: uniform in [0, 1) with 53 random bits.

    seed      0 .. 2**64 - 1, the key
    choice    0 .. 2**32 - 1, so that the choices of one request differ
    position  0 .. 2**64 - 1, output position: 0 is the first token after the prompt
    """
    counter = (position & MASK32, (position >> 32) & MASK32, choice & MASK32, 0)
    high, low, _, _ = philox4x32(counter, (seed & MASK32, (seed >> 32) & MASK32))
    return ((high >> 5) * 2**26 + (low >> 6)) / 2**53
