"""Log-probabilities for clients: always finite."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.sampler_search import Search
from headway.compute.sampling.logprobs import token_logprob
from headway.core.messages.path import LOGPROB_FLOOR, TokenLogprob

Float32s = npt.NDArray[np.float32]


def finite(logits: Float32s) -> Float32s:
    """A copy without NaN and infinities: they become the floor, and +inf its opposite."""
    repaired: Float32s = np.nan_to_num(
        logits, nan=LOGPROB_FLOOR, posinf=-LOGPROB_FLOOR, neginf=LOGPROB_FLOOR
    )
    return repaired


def score_tokens(logits: Float32s, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log-probability of one token a row under the softmax of the row, and the best ones.

    logits   [S, V]  C-contiguous, not changed
    targets  [S]
    """
    if not np.isfinite(logits).all():
        logits = finite(logits)
    search = Search(logits)
    scored = []
    for index, target in enumerate(targets):
        top = search.top(index)
        best: list[tuple[int, float]] = []
        if num_top > 0:
            values, ids = search.best(index, num_top)
            relative = values[:num_top] - top
            best = list(zip(ids[:num_top].tolist(), relative.tolist(), strict=True))
        own = float(logits[index, target]) - top
        scored.append(token_logprob(target, own, best, math.log(search.total(index, 1.0))))
    return scored
