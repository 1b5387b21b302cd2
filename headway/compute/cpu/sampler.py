"""Draws the next token of every sampled row, by the rules of `compute.sampling`."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.logprobs import finite, score_tokens
from headway.compute.cpu.sampler_search import Search
from headway.compute.sampling.adjustments import MASKED, Adjustment, adjustment, needs_adjusting
from headway.compute.sampling.draws import Draw
from headway.core.messages.path import Sampling, TokenLogprob
from headway.core.messages.step import SamplingState

Float32s = npt.NDArray[np.float32]


def draw_tokens(
    logits: Float32s, draws: Sequence[Draw]
) -> tuple["array[int]", tuple[TokenLogprob | None, ...]]:
    """One token a row, and its log-probability where asked for.

    logits  [S, V] C-contiguous, changed in place

    Each row's result depends on its own logits, parameters, history, seed and position
    only. A row with NaN or infinities is repaired (`logprobs.finite`).
    """
    search = Search(logits)
    for index, each in enumerate(draws):
        _prepare(logits, search, index, each)
    tokens = array("i", search.best_ids.tolist())
    logprobs: list[TokenLogprob | None] = [None] * len(draws)
    for index, each in enumerate(draws):
        sampling = each.state.sampling
        if not each.is_greedy:
            tokens[index] = search.draw(index, sampling, each.chance)
        if sampling.num_logprobs is not None:
            (logprobs[index],) = score_tokens(
                logits[index : index + 1], tokens[index : index + 1], sampling.num_logprobs
            )
    return tokens, tuple(logprobs)


def warm_up() -> None:
    """Compile every kernel of the sampler, or read it from the disk cache."""
    # Nearly flat, and no two equal, or all 200 would be candidates at once.
    flat = np.tile(np.linspace(0, 1e-3, 200, dtype=np.float32), (3, 1))
    parameters = (
        Sampling(max_tokens=1, seed=0, num_logprobs=1),
        Sampling(max_tokens=1, seed=0, top_k=2),
        Sampling(max_tokens=1, seed=0, top_p=0.9),  # the 64 best do not decide it
    )
    draw_tokens(flat, [Draw(SamplingState(each, 0, (), 0, ()), 0) for each in parameters])


def _prepare(logits: Float32s, search: Search, index: int, draw: Draw) -> None:
    """Repair and adjust one row, where there is a need."""
    if search.best_ids[index] < 0:
        _repair(logits, search, index)
    if needs_adjusting(draw):
        _adjust(logits[index], adjustment(draw))
        search.rescan(index)
        if search.best_ids[index] < 0:  # over the range of float32
            _repair(logits, search, index)


def _repair(logits: Float32s, search: Search, index: int) -> None:
    logits[index] = finite(logits[index])
    search.rescan(index)


def _adjust(row: Float32s, change: Adjustment) -> None:
    """Change one row [V] in place: penalties, then bias, then the masks."""
    with np.errstate(over="ignore"):
        if len(change.repeated):
            values, factor = row[change.repeated], change.repetition
            row[change.repeated] = np.where(values > 0, values / factor, values * factor)
        row[change.lowered] -= change.lowered_by
        np.add.at(row, change.biased, change.bias)
    if len(change.allowed):
        kept = row[change.allowed]
        row[:] = MASKED
        row[change.allowed] = kept
    row[change.masked] = MASKED
