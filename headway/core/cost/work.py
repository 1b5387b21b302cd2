"""The quantities that a step's time depends on."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepWork:
    """Sums over the rows of one step; a pair is one token that looks at one position.

    Decodes and prompts are kept apart: a decode reads its KV for one token, which memory
    limits, and a chunk of a prompt reads it for many, which arithmetic limits. So is what decodes
    find in blocks that another row reads as well: it comes from memory once for them all.
    """

    decode_rows: int = 0
    decode_pairs: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_shared: int = 0  # of decode_pairs: those whose K and V another row reads as well

    def add(self, start: int, num_tokens: int, sign: int = 1) -> None:
        """Count a row that computes positions start .. start + num_tokens - 1; -1 takes it out."""
        pairs = sign * pairs_of(start, num_tokens)
        if num_tokens == 1:
            self.decode_rows += sign
            self.decode_pairs += pairs
        else:
            self.prefill_tokens += sign * num_tokens
            self.prefill_pairs += pairs


def pairs_of(start: int, num_tokens: int) -> int:
    """Positions that the tokens look at together, each up to its own."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2
