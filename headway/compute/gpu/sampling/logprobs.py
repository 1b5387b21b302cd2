"""Log-probabilities for clients: always finite."""

from collections.abc import Sequence

import torch
from torch import Tensor

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
    totals = torch.logsumexp(logits, dim=-1)
    chosen = torch.tensor(targets, dtype=torch.int64, device=logits.device)
    own = (logits.gather(1, chosen[:, None])[:, 0] - totals).tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(own)
    if num_top > 0:
        values, ids = torch.topk(logits, min(num_top, logits.shape[-1]), dim=-1)
        values = values - totals[:, None]
        tops = [
            _best_first(row_ids, row_values)
            for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
        ]
    return [
        TokenLogprob(token_id=token_id, logprob=max(value, LOGPROB_FLOOR), top=top)
        for token_id, value, top in zip(targets, own, tops, strict=True)
    ]


def _best_first(ids: list[int], values: list[float]) -> tuple[tuple[int, float], ...]:
    """Equal values in the order of their ids, as the greedy choice breaks ties."""
    pairs = sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple((token_id, max(value, LOGPROB_FLOOR)) for token_id, value in pairs)
