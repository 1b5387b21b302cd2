import math
from collections import Counter

import msgspec
import pytest
import torch
from torch import Tensor

from headway.compute.gpu.sampling.sampler import draw_tokens
from headway.compute.sampling.draws import Draw
from headway.core.messages.path import LOGPROB_FLOOR, Sampling
from headway.core.messages.step import SamplingState
from tests.unit.compute.gpu.sampling.reference import probabilities, sampling

NAN = float("nan")
INF = float("inf")


def drawn(parameters: Sampling, position: int = 0, choice: int = 0) -> Draw:
    return Draw(SamplingState(parameters, choice, [0] * (1 + position), 1, (2,)), position)


def rows(count: int, size: int = 301, seed: int = 0) -> Tensor:
    return 3.0 * torch.randn((count, size), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-7, 1e-30, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 1e-9])
def test_tiny_temperatures_give_the_greedy_token_sampling_03(
    temperature: float, top_p: float
) -> None:
    logits = rows(8)
    want = logits.argmax(dim=-1).tolist()
    neighbour = drawn(sampling(seed=1))
    alone, _ = draw_tokens(rows(8)[7:], [neighbour])
    parameters = sampling(temperature=temperature, top_p=top_p, num_logprobs=1)
    tokens, logprobs = draw_tokens(logits, [drawn(parameters)] * 7 + [neighbour])
    assert list(tokens[:7]) == want[:7]
    assert tokens[7] == alone[0]
    assert all(each is not None and math.isfinite(each.logprob) for each in logprobs[:7])


def test_draws_have_the_reference_frequencies() -> None:
    parameters = [
        sampling(temperature=0.8),
        sampling(top_k=5, temperature=1.5),
        sampling(top_p=0.8, min_p=0.02),
    ]
    row = rows(1, size=23)
    for each in parameters:
        want = probabilities(row[0].tolist(), each)
        draws = [drawn(msgspec.structs.replace(each, seed=seed)) for seed in range(4000)]
        tokens, _ = draw_tokens(row.repeat(4000, 1), draws)
        counts = Counter(tokens)
        assert counts.keys() <= want.keys()
        distance = sum(abs(counts[token] / 4000 - p) for token, p in want.items()) / 2
        assert distance < 0.03  # about 0.01 is expected of 4,000 draws; the seeds are fixed


def test_a_draw_does_not_depend_on_its_neighbours_sampling_01() -> None:
    logits = rows(5)
    mixed = [
        drawn(sampling(seed=42, temperature=0.8)),
        drawn(sampling(temperature=0.0)),
        drawn(sampling(seed=7, top_p=0.9, num_logprobs=2)),
        drawn(msgspec.structs.replace(sampling(seed=3), logit_bias=((10, 100.0),))),
        drawn(sampling(seed=42, top_k=3), position=9),
    ]
    together, _ = draw_tokens(logits.clone(), mixed)
    backwards, _ = draw_tokens(logits.flip(0), mixed[::-1])
    assert list(together) == list(backwards)[::-1]
    for index, each in enumerate(mixed):
        alone, _ = draw_tokens(logits[index : index + 1].clone(), [each])
        assert alone[0] == together[index]


def test_seed_choice_and_position_each_change_the_draw() -> None:
    flat = torch.zeros((1, 100_000))
    tokens = {
        draw_tokens(flat.clone(), [drawn(sampling(seed=seed), position, choice)])[0][0]
        for seed in (0, 1)
        for choice in (0, 1)
        for position in (0, 1)
    }
    assert len(tokens) == 8


def test_a_bias_forces_and_a_mask_prevents() -> None:
    forced = msgspec.structs.replace(sampling(), logit_bias=((5, 100.0),))
    ending = msgspec.structs.replace(sampling(), logit_bias=((2, 100.0),), min_tokens=1)
    tokens, _ = draw_tokens(rows(3), [drawn(forced), drawn(ending), drawn(ending, position=1)])
    assert tokens[0] == 5
    assert tokens[1] != 2
    assert tokens[2] == 2


def test_logprobs_are_of_the_adjusted_logits_before_temperature_and_filters() -> None:
    logits = rows(1, size=40)
    biased = logits[0].double()
    biased[7] += 3.0
    want = biased.log_softmax(-1)
    parameters = msgspec.structs.replace(
        sampling(temperature=0.5, top_k=1, num_logprobs=4), logit_bias=((7, 3.0),)
    )
    (token,), (logprob,) = draw_tokens(logits, [drawn(parameters)])
    assert logprob is not None
    assert logprob.token_id == token == int(want.argmax())
    assert logprob.logprob == pytest.approx(float(want[token]), abs=1e-5)
    best = want.topk(4)
    assert [each for each, _ in logprob.top] == best.indices.tolist()
    assert [value for _, value in logprob.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_each_row_gets_as_many_logprobs_as_it_asked_for() -> None:
    asked = [None, 0, 1, 5, 1000]
    _, logprobs = draw_tokens(rows(5), [drawn(sampling(num_logprobs=count)) for count in asked])
    assert logprobs[0] is None
    assert [len(each.top) for each in logprobs if each is not None] == [0, 1, 5, 301]


def test_a_masked_token_has_the_floor_as_its_logprob_logprobs_01() -> None:
    parameters = msgspec.structs.replace(sampling(num_logprobs=3), min_tokens=1)
    _, (logprob,) = draw_tokens(rows(1, size=3), [drawn(parameters)])
    assert logprob is not None
    assert logprob.top[-1] == (2, LOGPROB_FLOOR)


@pytest.mark.parametrize("bad", [[NAN] * 4, [NAN, 1.0, 2.0, NAN], [-INF] * 4, [0.0, INF, INF, 1.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_logits_hurts_nobody_else(
    bad: list[float], temperature: float
) -> None:
    good = [0.0, 1.0, 5.0, 2.0]
    parameters = drawn(sampling(temperature=temperature, num_logprobs=4))
    (want,), (want_logprob,) = draw_tokens(torch.tensor([good]), [parameters])
    tokens, logprobs = draw_tokens(torch.tensor([bad, good, bad]), [parameters] * 3)
    assert tokens[1] == want
    assert logprobs[1] == want_logprob
    assert all(0 <= token < 4 for token in tokens)
    for each in logprobs:
        assert each is not None
        assert all(math.isfinite(value) for _, value in each.top)
        assert math.isfinite(each.logprob)


def test_a_row_whose_every_token_is_masked_still_draws() -> None:
    parameters = msgspec.structs.replace(sampling(num_logprobs=1), min_tokens=1)
    state = SamplingState(parameters, 0, [0], 1, (0, 1, 2))
    (token,), (logprob,) = draw_tokens(rows(1, size=3), [Draw(state, 0)])
    assert token in (0, 1, 2)
    assert logprob is not None
    assert math.isfinite(logprob.logprob)
