"""Draws the next token of every sampled row."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from headway.compute.gpu.sampling.adjust import adjust_
from headway.compute.gpu.sampling.candidates import draw
from headway.compute.gpu.sampling.logprobs import finite, score_tokens
from headway.compute.sampling.adjustments import adjustment, needs_adjusting
from headway.compute.sampling.draws import Draw
from headway.compute.sampling.filters import FIRST_CANDIDATES
from headway.core.messages.path import TokenLogprob


def draw_tokens(
    logits: Tensor, draws: Sequence[Draw]
) -> tuple["array[int]", tuple[TokenLogprob | None, ...]]:
    """One token a row, and its log-probability where asked for.

    logits  [S, V] float32, changed in place

    Each row's result depends on its own logits, parameters, history, seed and position
    only. A row with NaN or infinities is repaired (`logprobs.finite`).
    """
    best, best_ids = logits.max(dim=-1)
    broken = (~torch.isfinite(best)).nonzero()[:, 0]
    if len(broken):
        logits[broken] = finite(logits[broken])
        best_ids[broken] = logits[broken].argmax(dim=-1)
    adjusted = [index for index, each in enumerate(draws) if needs_adjusting(each)]
    for index in adjusted:
        adjust_(logits[index], adjustment(draws[index]))
    if adjusted:
        best_ids[adjusted] = logits[adjusted].argmax(dim=-1)
    tokens = array("i", best_ids.tolist())
    _draw_random(logits, draws, tokens)
    return tokens, _logprobs(logits, draws, tokens)


def _draw_random(logits: Tensor, draws: Sequence[Draw], tokens: "array[int]") -> None:
    """Replace the greedy token of rows that have a temperature."""
    random = [index for index, each in enumerate(draws) if not each.is_greedy]
    if not random:
        return
    rows = logits if len(random) == len(draws) else logits[random]
    best, best_ids = torch.topk(rows, min(FIRST_CANDIDATES, rows.shape[-1]), dim=-1)
    best, best_ids = best.cpu(), best_ids.cpu()
    for place, index in enumerate(random):
        sampling, chance = draws[index].state.sampling, draws[index].chance
        tokens[index] = draw(rows[place], best[place], best_ids[place], sampling, chance)


def _logprobs(
    logits: Tensor, draws: Sequence[Draw], tokens: "array[int]"
) -> tuple[TokenLogprob | None, ...]:
    asked = {
        index: each.state.sampling.num_logprobs
        for index, each in enumerate(draws)
        if each.state.sampling.num_logprobs is not None
    }
    found: list[TokenLogprob | None] = [None] * len(draws)
    if not asked:
        return tuple(found)
    indices = list(asked)
    widest = max(count for count in asked.values() if count is not None)
    scored = score_tokens(logits[indices], [tokens[index] for index in indices], widest)
    for index, each in zip(indices, scored, strict=True):
        found[index] = TokenLogprob(each.token_id, each.logprob, each.top[: asked[index]])
    return tuple(found)
