"""One draw out of one row, without sorting the vocabulary in the usual case.

Order of the filters: temperature, top-k, top-p of what is left, min-p. A few dozen best
tokens nearly always decide all three; whether they do is checked against the mass of the
whole row, and more candidates are taken only when they do not.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.core.messages.path import Sampling

FIRST_CANDIDATES = 64
WIDER_CANDIDATES = 2048

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def draw(row: Tensor, best: Tensor, best_ids: Tensor, sampling: Sampling, chance: float) -> int:
    """The token at `chance` (in [0, 1)) of the row's filtered distribution, by inverse CDF.

    row             [V]  finite float32 logits
    best, best_ids  [K]  the row's K largest, from topk

    Tokens are laid out best first (equal ones by id), or by id when nothing is filtered.
    """
    if not _is_filtered(sampling):
        return _draw_unfiltered(row, float(best[0]), sampling.temperature, chance)
    total: float | None = None
    for width in (len(best), WIDER_CANDIDATES, len(row)):
        if width > len(best):
            best, best_ids = torch.topk(row, min(width, len(row)))
        values, ids = _best_first(best, best_ids)
        weights = np.exp((values - values[0]) / sampling.temperature)
        if total is None and not _is_decided_by_top_k(sampling, len(weights)):
            total = _mass(row, float(values[0]), sampling.temperature)
        kept = _num_kept(weights, total, sampling, is_whole=len(weights) == len(row))
        if kept is not None:
            return int(ids[_pick(np.cumsum(weights[:kept]), chance)])
    raise AssertionError("a whole row is always enough")


def _is_filtered(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _is_decided_by_top_k(sampling: Sampling, num_candidates: int) -> bool:
    return 0 < sampling.top_k <= num_candidates


def _best_first(best: Tensor, best_ids: Tensor) -> tuple[Floats, Ints]:
    values = best.cpu().numpy().astype(np.float64)
    ids = best_ids.cpu().numpy()
    order = np.lexsort((ids, -values))
    return values[order], ids[order]


def _mass(row: Tensor, top: float, temperature: float) -> float:
    """Sum of the weights of all tokens, relative to the best one's."""
    return float(((row - top) / temperature).exp().sum(dtype=torch.float64))


def _num_kept(
    weights: Floats, total: float | None, sampling: Sampling, *, is_whole: bool
) -> int | None:
    """How many of the candidates pass; None when there may be more than these.

    weights  [K] best first, the first is 1
    total    mass of the row, when top-k does not cut within the candidates
    """
    is_decided = is_whole
    if _is_decided_by_top_k(sampling, len(weights)):
        weights = weights[: sampling.top_k]
        total = float(weights.sum())
        is_decided = True
    elif sampling.top_k > 0 and not is_whole:
        return None
    assert total is not None, "the mass of the row is needed when top-k does not decide"
    kept = len(weights)
    if sampling.top_p < 1.0:
        reached = int(np.searchsorted(np.cumsum(weights), sampling.top_p * total))
        if reached < kept:
            kept, is_decided = reached + 1, True
    if sampling.min_p > 0.0:
        likely = int((weights >= sampling.min_p).sum())
        if likely < len(weights):
            kept, is_decided = min(kept, max(likely, 1)), True
    return kept if is_decided else None


def _draw_unfiltered(row: Tensor, top: float, temperature: float, chance: float) -> int:
    weights = ((row.double() - top) / temperature).exp()
    return _pick(weights.cumsum(0).cpu().numpy(), chance)


def _pick(cumulative: Floats, chance: float) -> int:
    """First index whose cumulative weight is over the chance; never one of weight zero."""
    end = cumulative[-1]
    last = int(np.searchsorted(cumulative, end))
    return min(int(np.searchsorted(cumulative, chance * end, side="right")), last)
