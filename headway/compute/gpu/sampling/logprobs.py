"""Log-probabilities for clients: always finite."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.compute.sampling.logprobs import token_logprob
from headway.core.messages.path import LOGPROB_FLOOR, TokenLogprob


def finite(logits: Tensor) -> Tensor:
    """The logits without NaN and infinities, so that one bad row cannot raise for all.

    A model that gives NaN is broken for that row, but its neighbours are other people's:
    NaN and -inf become the floor, +inf its opposite.
    """
    return torch.nan_to_num(logits, nan=LOGPROB_FLOOR, posinf=-LOGPROB_FLOOR, neginf=LOGPROB_FLOOR)


def score_tokens(logits: Tensor, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log-probability of one token a row under the softmax of the row, and the best ones.

    logits   [S, V] float32
    targets  [S]
    """
    if not bool(torch.isfinite(logits).all()):
        logits = finite(logits)
    # Relative to the best, so that nothing is lost when all logits are far from zero.
    best = logits.amax(dim=-1, keepdim=True)
    totals = torch.logsumexp(logits - best, dim=-1).tolist()
    best = best.double()
    chosen = torch.tensor(targets, dtype=torch.int64, device=logits.device)
    own = (logits.gather(1, chosen[:, None]) - best)[:, 0].tolist()
    tops: list[list[tuple[int, float]]] = [[]] * len(own)
    if num_top > 0:
        values, ids = torch.topk(logits, min(num_top, logits.shape[-1]), dim=-1)
        tops = [
            list(zip(row_ids, row_values, strict=True))
            for row_ids, row_values in zip(ids.tolist(), (values - best).tolist(), strict=True)
        ]
    return [
        token_logprob(target, value, top, total)
        for target, value, top, total in zip(targets, own, tops, totals, strict=True)
    ]
