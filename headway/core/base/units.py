"""Quantities that must not be mixed up, and the arithmetic between them."""

from typing import NewType

Seconds = NewType("Seconds", float)
Tokens = NewType("Tokens", int)
Blocks = NewType("Blocks", int)
Bytes = NewType("Bytes", int)


def blocks_for(length: int, block_size: int) -> Blocks:
    """Blocks needed to hold `length` tokens; the last block may be partly empty."""
    return Blocks(-(-length // block_size))
