"""Chunked prefill: how much of a gap fits into what is left of a step.

Source: Agrawal et al. 2024 (Sarathi-Serve), section 4: prompts are cut so that decodes
are never held up by a whole one.
"""


def chunk(gap: int, budget: int) -> int:
    """Tokens to compute of a gap, given the tokens left in the step's budget."""
    return max(0, min(gap, budget))
