"""Sampling in the plainest way: the whole vocabulary, sorted, in float64."""

import math
from collections.abc import Sequence

from headway.core.messages.path import Sampling


def probabilities(logits: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """Token to probability after temperature, top-k, top-p of the rest, and min-p."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    best = logits[order[0]]
    weights = [math.exp((logits[token] - best) / sampling.temperature) for token in order]
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    total, reached, kept = sum(weights), 0.0, 0
    while kept < len(weights):
        reached += weights[kept]
        kept += 1
        if sampling.top_p < 1.0 and reached >= sampling.top_p * total:
            break
    weights = [weight for weight in weights[:kept] if weight >= sampling.min_p]
    total = sum(weights)
    return {token: weight / total for token, weight in zip(order, weights, strict=False)}


def sampling(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    num_logprobs: int | None = None,
) -> Sampling:
    """Parameters with defaults that filter nothing."""
    return Sampling(
        max_tokens=99,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        num_logprobs=num_logprobs,
    )
