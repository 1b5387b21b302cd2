from collections.abc import Sequence

import msgspec
import pytest
import torch

from headway.compute.gpu.sampling.adjust import adjust_
from headway.compute.sampling.adjustments import MASKED, adjustment, needs_adjusting
from headway.compute.sampling.draws import Draw
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState

PLAIN = Sampling(max_tokens=9, seed=0)
PROMPT = [1, 1, 2]


def adjusted(
    sampling: Sampling,
    output: Sequence[int] = (),
    *,
    last: int | None = None,
    end_ids: tuple[int, ...] = (),
) -> list[float]:
    """Logits 2, 2, 2, -2, -2 after adjusting for the prompt 1 1 2 and this output."""
    row = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0])
    state = SamplingState(sampling, 0, [*PROMPT, *output], len(PROMPT), end_ids)
    draw = Draw(state, len(output) + (last is not None), last)
    if needs_adjusting(draw):
        adjust_(row, adjustment(draw))
    return row.tolist()


def changed(**fields: float) -> Sampling:
    return msgspec.structs.replace(PLAIN, **fields)


def test_openai_penalties_ignore_the_prompt_sampling_02() -> None:
    penalties = changed(presence_penalty=2.0, frequency_penalty=1.0)
    assert adjusted(penalties) == [2.0, 2.0, 2.0, -2.0, -2.0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_token_generated_k_times_is_lowered_by_k_times_sampling_02(count: int) -> None:
    penalties = changed(presence_penalty=0.5, frequency_penalty=0.25)
    lowered = 2.0 - 0.5 - 0.25 * count
    assert adjusted(penalties, [0] * count) == [lowered, 2.0, 2.0, -2.0, -2.0]


def test_repetition_penalty_knows_the_prompt_from_the_first_token_sampling_02() -> None:
    assert adjusted(changed(repetition_penalty=2.0)) == [2.0, 1.0, 1.0, -2.0, -2.0]


def test_repetition_penalty_pushes_negative_logits_down() -> None:
    assert adjusted(changed(repetition_penalty=2.0), [3]) == [2.0, 1.0, 1.0, -4.0, -2.0]


def test_the_token_still_in_flight_counts() -> None:
    penalties = changed(presence_penalty=1.0)
    assert adjusted(penalties, [4], last=0) == [1.0, 2.0, 2.0, -2.0, -3.0]
    assert adjusted(penalties, [4, 0]) == [1.0, 2.0, 2.0, -2.0, -3.0]


def test_tokens_after_the_position_do_not_count() -> None:
    row = torch.zeros(5)
    state = SamplingState(changed(presence_penalty=1.0), 0, [*PROMPT, 4, 0], len(PROMPT), ())
    adjust_(row, adjustment(Draw(state, 1, 4)))
    assert row.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0]


def test_bias_is_added_after_the_penalties() -> None:
    sampling = msgspec.structs.replace(
        PLAIN, repetition_penalty=2.0, logit_bias=((1, 10.0), (3, -1.0))
    )
    assert adjusted(sampling) == [2.0, 11.0, 1.0, -3.0, -2.0]


def test_end_ids_are_masked_until_min_tokens_whatever_the_bias() -> None:
    sampling = msgspec.structs.replace(PLAIN, min_tokens=1, logit_bias=((3, 100.0),))
    assert adjusted(sampling, end_ids=(3,)) == [2.0, 2.0, 2.0, MASKED, -2.0]
    assert adjusted(sampling, [0], end_ids=(3,)) == [2.0, 2.0, 2.0, 98.0, -2.0]


def test_only_allowed_ids_keep_their_logits_and_other_masks_still_hold() -> None:
    sampling = msgspec.structs.replace(
        PLAIN, allowed_token_ids=(4, 1, 3), min_tokens=1, logit_bias=((0, 100.0), (4, 1.0))
    )
    assert adjusted(sampling, end_ids=(3,)) == [MASKED, 2.0, MASKED, MASKED, -1.0]


def test_a_bad_word_is_masked_only_where_the_output_would_complete_it() -> None:
    sampling = msgspec.structs.replace(PLAIN, bad_words=((0, 3, 4), (2,)))
    masked = [2.0, 2.0, MASKED, -2.0, -2.0]
    assert adjusted(sampling) == masked
    assert adjusted(sampling, [0]) == masked
    assert adjusted(sampling, [3]) == masked
    assert adjusted(sampling, [0, 3, 1]) == masked
    assert adjusted(sampling, [1, 0, 3]) == [2.0, 2.0, MASKED, -2.0, MASKED]
    assert adjusted(sampling, [1, 0], last=3) == [2.0, 2.0, MASKED, -2.0, MASKED]


def test_the_prompt_begins_no_bad_word() -> None:
    sampling = msgspec.structs.replace(PLAIN, bad_words=((1, 2, 4),))
    assert PROMPT[-2:] == [1, 2]
    assert adjusted(sampling) == [2.0, 2.0, 2.0, -2.0, -2.0]


def test_plain_parameters_need_nothing() -> None:
    state = SamplingState(PLAIN, 0, PROMPT, len(PROMPT), (3,))
    assert not needs_adjusting(Draw(state, 0))
