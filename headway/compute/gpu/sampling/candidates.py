"""One draw out of one row, without sorting the vocabulary.

A few dozen best tokens nearly always decide the filters; whether they do is checked against
the mass of the whole row. When they do not, exactly those tokens are sorted that may pass.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.compute.sampling.filters import choose, is_decided, is_filtered, pick
from headway.core.messages.path import Sampling

# Buckets of the histogram that bounds top-p, 64 to one unit of logit / temperature. The last
# one holds all that is below e^-40 of the best.
BUCKETS_A_UNIT = 64
NUM_BUCKETS = 40 * BUCKETS_A_UNIT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def draw(row: Tensor, best: Tensor, best_ids: Tensor, sampling: Sampling, chance: float) -> int:
    """The token at `chance` (in [0, 1)) of the row's filtered distribution, by inverse CDF.

    row             [V]  finite float32 logits
    best, best_ids  [K]  the row's K largest, from topk, best first

    Tokens are laid out best first (equal ones by id), or by id when nothing is filtered.
    """
    top = float(best[0])
    if not is_filtered(sampling):
        masses = ((row.double() - top) / sampling.temperature).exp().cumsum(0)
        return pick(masses.cpu().numpy(), chance)
    is_enough = len(best) == len(row) or 0 < sampling.top_k <= len(best)
    total = None if sampling.top_k > 0 else _mass(row, top, sampling.temperature)
    values, ids = _best_first(best, best_ids)
    if not is_enough and not is_decided(values, total, sampling):
        values, ids = _best_first(*_all_that_may_pass(row, top, sampling))
    return int(ids[choose(values, total, sampling, chance)])


def _best_first(best: Tensor, best_ids: Tensor) -> tuple[Floats, Ints]:
    values = best.cpu().numpy().astype(np.float64)
    ids = best_ids.cpu().numpy()
    order = np.lexsort((ids, -values))
    return values[order], ids[order]


def _mass(row: Tensor, top: float, temperature: float) -> float:
    """Sum of the weights of all tokens, relative to the best one's."""
    return float(((row - top) / temperature).exp().sum(dtype=torch.float64))


def _all_that_may_pass(row: Tensor, top: float, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Values and ids of a set that holds every token that the filters let pass."""
    if sampling.top_k > 0:
        values, ids = torch.topk(row, min(sampling.top_k, len(row)))
        return values, ids
    if sampling.min_p > 0.0:
        bound = top + sampling.temperature * math.log(sampling.min_p)
        margin = 1e-5 * max(abs(bound), abs(top))  # the row and the bound are rounded
        passes = row >= bound - margin
    else:
        below = (top - row.double()) / sampling.temperature
        buckets = (below * BUCKETS_A_UNIT).clamp_(max=NUM_BUCKETS - 1).long()
        masses = torch.bincount(buckets, weights=(-below).exp(), minlength=NUM_BUCKETS).cumsum(0)
        passes = buckets <= torch.searchsorted(masses, sampling.top_p * masses[-1])
    ids = passes.nonzero()[:, 0]
    return row[ids], ids
