"""Which of a row's best tokens may be drawn, and which one is.

Order of the filters: temperature, top-k, top-p of what is left, min-p. A weight is a
token's probability relative to the best one's, so the best has the weight 1.
"""

import numpy as np
import numpy.typing as npt

from headway.core.messages.path import Sampling

# So many best tokens nearly always decide top-p and min-p.
FIRST_CANDIDATES = 64

Floats = npt.NDArray[np.float64]


def is_filtered(sampling: Sampling) -> bool:
    """Whether anything but the temperature shapes the distribution."""
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def is_decided(values: Floats, total: float | None, sampling: Sampling) -> bool:
    """Whether a token that is not among these could not pass top-p or min-p either.

    values  the row's largest logits, best first
    total   sum of the weights of the whole row; None (with top-k): never decided
    """
    if total is None:
        return False
    weights = _weights(values, sampling)
    if sampling.min_p > 0.0 and weights[-1] < sampling.min_p:
        return True
    return sampling.top_p < 1.0 and float(weights.sum()) >= sampling.top_p * total


def choose(values: Floats, total: float | None, sampling: Sampling, chance: float) -> int:
    """Index of the token at `chance` (in [0, 1)) of the filtered distribution.

    values  logits, best first (equal ones by id), of every token that may pass
    total   sum of the weights of the whole row; None (with top-k): top-k leaves no others
    """
    weights = _weights(values, sampling)
    return pick(np.cumsum(weights[: _num_kept(weights, total, sampling)]), chance)


def pick(cumulative: Floats, chance: float) -> int:
    """First index whose cumulative weight is over the chance; never one of weight zero."""
    end = cumulative[-1]
    last = int(np.searchsorted(cumulative, end))
    return min(int(np.searchsorted(cumulative, chance * end, side="right")), last)


def _weights(values: Floats, sampling: Sampling) -> Floats:
    """Best first, the first is 1; those past top-k are gone."""
    if sampling.top_k > 0:
        values = values[: sampling.top_k]
    weights: Floats = np.exp((values - values[0]) / sampling.temperature)
    return weights


def _num_kept(weights: Floats, total: float | None, sampling: Sampling) -> int:
    """How many of the weights pass top-p and min-p; at least one."""
    kept = len(weights)
    if sampling.top_p < 1.0:
        cumulative = np.cumsum(weights)
        wanted = sampling.top_p * (float(cumulative[-1]) if total is None else total)
        kept = min(kept, int(np.searchsorted(cumulative, wanted)) + 1)
    if sampling.min_p > 0.0:
        kept = min(kept, max(int((weights >= sampling.min_p).sum()), 1))
    return kept
