"""What a request adds to its logits: penalties, bias, and tokens it may not have yet."""

import numpy as np
import torch
from torch import Tensor

from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState

# Finite, so that a row whose every token is masked still has a distribution.
MASKED = torch.finfo(torch.float32).min


def needs_adjusting(state: SamplingState, position: int) -> bool:
    """Whether `adjust_` would change anything."""
    sampling = state.sampling
    return (
        _has_penalties(sampling)
        or bool(sampling.logit_bias)
        or (position < sampling.min_tokens and bool(state.end_ids))
    )


def adjust_(logits: Tensor, state: SamplingState, position: int, last: int | None) -> None:
    """Change one row [V] in place: penalties, then bias, then the mask of min_tokens.

    last  the history's last token, if `state.tokens` may not hold it yet (see StepPlan)

    Repetition divides positive logits and multiplies negative ones for every token of
    prompt and output (Keskar et al. 2019); frequency and presence count output only.
    """
    sampling = state.sampling
    if _has_penalties(sampling):
        _penalise(logits, sampling, _history(state, position, last), state.num_prompt)
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        where = torch.tensor(ids, dtype=torch.int64, device=logits.device)
        logits.index_add_(0, where, logits.new_tensor(values))
    if position < sampling.min_tokens and state.end_ids:
        where = torch.tensor(state.end_ids, dtype=torch.int64, device=logits.device)
        logits.index_fill_(0, where, MASKED)


def _has_penalties(sampling: Sampling) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


def _history(state: SamplingState, position: int, last: int | None) -> np.ndarray:
    """Prompt and output before this position; never more, whatever the list holds by now."""
    length = state.num_prompt + position
    tokens = list(state.tokens[:length])
    if len(tokens) < length and last is not None:
        tokens.append(last)
    assert len(tokens) == length, f"{length} tokens come before the draw, {len(tokens)} are known"
    return np.array(tokens, dtype=np.int64)


def _penalise(logits: Tensor, sampling: Sampling, tokens: np.ndarray, num_prompt: int) -> None:
    device = logits.device
    if sampling.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(tokens)).to(device)
        values = logits[seen]
        factor = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    ids, counts = np.unique(tokens[num_prompt:], return_counts=True)
    if len(ids) and (sampling.frequency_penalty or sampling.presence_penalty):
        lowered = counts * sampling.frequency_penalty + sampling.presence_penalty
        where = torch.from_numpy(ids).to(device)
        logits[where] -= torch.from_numpy(lowered).to(device, torch.float32)
