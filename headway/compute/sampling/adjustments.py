"""What a request adds to its logits: penalties, bias, and tokens it may not have yet."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.compute.sampling.draws import Draw
from headway.core.messages.path import Sampling

# Finite, so that a row whose every token is masked still has a distribution.
MASKED = float(np.finfo(np.float32).min)

Ints = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]


class Adjustment(NamedTuple):
    """Changes to one row, in the order in which they are made; any part may be empty.

    Repetition divides positive logits and multiplies negative ones for every token of
    prompt and output (Keskar et al. 2019); frequency and presence count output only.
    """

    repeated: Ints  # ids whose logits `repetition` pushes down, each once
    repetition: float
    lowered: Ints  # ids that lose `lowered_by`, each once
    lowered_by: Float32s
    biased: Ints  # ids that gain `bias`; one may come twice
    bias: Float32s
    masked: Ints  # ids that become MASKED
    allowed: Ints  # ids whose logits stay when all others become MASKED; empty: all stay


def needs_adjusting(draw: Draw) -> bool:
    """Whether `adjustment` would change anything."""
    state, sampling = draw.state, draw.state.sampling
    return (
        _has_penalties(sampling)
        or bool(sampling.logit_bias)
        or bool(sampling.allowed_token_ids)
        or bool(sampling.bad_words)
        or (draw.position < sampling.min_tokens and bool(state.end_ids))
    )


def adjustment(draw: Draw) -> Adjustment:
    """What to do with the draw's row."""
    state, sampling = draw.state, draw.state.sampling
    looks_back = _has_penalties(sampling) or bool(sampling.bad_words)
    tokens = _history(draw) if looks_back else np.empty(0, np.int64)
    masked = [*_ended_bad_words(sampling, tokens[state.num_prompt :].tolist())]
    if draw.position < sampling.min_tokens:
        masked += state.end_ids
    lowered, counts = np.unique(tokens[state.num_prompt :], return_counts=True)
    lowered_by = counts * sampling.frequency_penalty + sampling.presence_penalty
    return Adjustment(
        repeated=np.unique(tokens) if sampling.repetition_penalty != 1.0 else tokens[:0],
        repetition=sampling.repetition_penalty,
        lowered=lowered,
        lowered_by=lowered_by.astype(np.float32),
        biased=np.array([token for token, _ in sampling.logit_bias], dtype=np.int64),
        bias=np.array([value for _, value in sampling.logit_bias], dtype=np.float32),
        masked=np.array(masked, dtype=np.int64),
        allowed=np.array(sampling.allowed_token_ids, dtype=np.int64),
    )


def _ended_bad_words(sampling: Sampling, output: list[int]) -> Iterator[int]:
    """The last ids of the bad words that the output has reached but for one."""
    for *before, last in sampling.bad_words:
        if output[len(output) - len(before) :] == before:
            yield last


def _has_penalties(sampling: Sampling) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


def _history(draw: Draw) -> Ints:
    """Prompt and output before this position; never more, whatever the list holds by now."""
    length = draw.state.num_prompt + draw.position
    tokens = list(draw.state.tokens[:length])
    if len(tokens) < length and draw.last is not None:
        tokens.append(draw.last)
    assert len(tokens) == length, f"{length} tokens come before the draw, {len(tokens)} are known"
    return np.array(tokens, dtype=np.int64)
