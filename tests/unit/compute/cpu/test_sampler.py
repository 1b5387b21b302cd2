"""Both samplers draw the same tokens from the same logits."""

import math
import random
from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from headway.compute.cpu import sampler_kernels
from headway.compute.cpu.sampler import draw_tokens, warm_up
from headway.compute.gpu.sampling.sampler import draw_tokens as torch_draw_tokens
from headway.compute.sampling.draws import Draw
from headway.core.messages.path import LOGPROB_FLOOR, Sampling
from headway.core.messages.step import SamplingState
from tests.unit.compute.cpu.test_logprobs import assert_same
from tests.unit.compute.gpu.sampling.reference import probabilities, sampling

NAN, INF = float("nan"), float("inf")

Float32s = npt.NDArray[np.float32]


def drawn(parameters: Sampling, position: int = 0, choice: int = 0) -> Draw:
    return Draw(SamplingState(parameters, choice, [0] * (1 + position), 1, (2,)), position)


def rows(count: int, size: int = 301, seed: int = 0, scale: float = 3.0) -> Float32s:
    values = np.random.default_rng(seed).standard_normal((count, size))
    return (scale * values).astype(np.float32)


def random_sampling(rng: random.Random, size: int) -> Sampling:
    """Any mixture of parameters; each is off half of the time."""

    def some(off: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < 0.5 else off

    return Sampling(
        max_tokens=9,
        seed=rng.getrandbits(64),
        temperature=some(1.0, 0.0, 1e-6, 0.1, 0.7, 1.5),
        top_k=int(some(0, 1, 5, 64, 65, 1000, 10**6)),
        top_p=some(1.0, 1e-9, 0.3, 0.9, 0.95, 0.999),
        min_p=some(0.0, 1e-6, 0.05, 0.5, 1.0),
        repetition_penalty=some(1.0, 0.8, 1.3),
        frequency_penalty=some(0.0, -0.5, 0.7),
        presence_penalty=some(0.0, -2.0, 1.1),
        logit_bias=tuple(
            (rng.randrange(size), rng.choice([-100.0, -1.0, 2.5, 100.0]))
            for _ in range(rng.choice([0, 0, 1, 20]))
        ),
        min_tokens=rng.choice([0, 0, 3]),
        num_logprobs=rng.choice([None, 0, 1, 5]),
        allowed_token_ids=tuple(
            rng.sample(range(size), min(size, rng.choice([0, 0, 0, 1, 7, 100])))
        ),
        bad_words=tuple(
            tuple(rng.randrange(min(size, 20)) for _ in range(rng.randint(1, 2)))
            for _ in range(rng.choice([0, 0, 1, 5]))
        ),
    )


def random_draw(rng: random.Random, size: int) -> Draw:
    num_prompt, position = rng.randrange(1, 9), rng.randrange(7)
    tokens = [rng.randrange(min(size, 20)) for _ in range(num_prompt + position)]
    last = None
    if position and rng.random() < 0.5:
        last = tokens.pop()
    end_ids = tuple(rng.sample(range(size), min(size, rng.choice([0, 1, 4]))))
    state = SamplingState(random_sampling(rng, size), rng.randrange(4), tokens, num_prompt, end_ids)
    return Draw(state, position, last)


def assert_both_draw_the_same(logits: Float32s, draws: list[Draw]) -> None:
    want, want_logprobs = torch_draw_tokens(torch.from_numpy(logits.copy()), draws)
    got, got_logprobs = draw_tokens(logits.copy(), draws)
    assert got.typecode == "i"
    assert list(got) == list(want)
    for each, other in zip(got_logprobs, want_logprobs, strict=True):
        assert (each is None) == (other is None)
        if each is not None and other is not None:
            assert_same(each, other)


@pytest.mark.parametrize("size", [3, 64, 301, 5003, 49152])
@pytest.mark.parametrize("scale", [0.3, 3.0, 8.0])
def test_any_mixture_draws_what_the_torch_sampler_draws(size: int, scale: float) -> None:
    rng = random.Random(size)
    count = 40 if size > 1000 else 150
    logits = rows(count, size, seed=size, scale=scale)
    assert_both_draw_the_same(logits, [random_draw(rng, size) for _ in range(count)])


def test_near_ties_and_equal_logits_draw_what_the_torch_sampler_draws() -> None:
    rng = random.Random(5)
    near = np.float32(3.0) + rows(100, 40, scale=1e-6)
    equal = np.round(rows(100, 40))
    for logits in (near, equal, np.zeros((100, 40), dtype=np.float32)):
        assert_both_draw_the_same(logits, [random_draw(rng, 40) for _ in range(100)])


@pytest.mark.parametrize("bad", [[NAN] * 4, [NAN, 1, 2, -NAN], [-INF] * 4, [0, INF, INF, 1]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_logits_is_repaired_as_torch_does(
    bad: list[float], temperature: float
) -> None:
    good = [0.0, 1.0, 5.0, 2.0]
    parameters = drawn(sampling(temperature=temperature, num_logprobs=4))
    assert_both_draw_the_same(np.array([bad, good, bad], dtype=np.float32), [parameters] * 3)


def test_masked_rows_draw_what_the_torch_sampler_draws() -> None:
    parameters = msgspec.structs.replace(sampling(num_logprobs=3), min_tokens=1)
    end_ids = tuple(range(299))
    draws = [
        Draw(SamplingState(msgspec.structs.replace(parameters, seed=seed), 0, [0], 1, end_ids), 0)
        for seed in range(20)
    ]
    assert_both_draw_the_same(rows(20, 301), draws)
    tokens, _ = draw_tokens(rows(20, 301), draws)
    assert set(tokens) <= {299, 300}


def test_a_row_whose_every_token_is_masked_still_draws() -> None:
    parameters = msgspec.structs.replace(sampling(num_logprobs=1), min_tokens=1)
    state = SamplingState(parameters, 0, [0], 1, (0, 1, 2))
    (token,), (logprob,) = draw_tokens(rows(1, size=3), [Draw(state, 0)])
    assert token in (0, 1, 2)
    assert logprob is not None
    assert math.isfinite(logprob.logprob)


def test_logits_over_the_range_of_float32_are_repaired() -> None:
    parameters = msgspec.structs.replace(sampling(temperature=0.0), repetition_penalty=0.5)
    state = SamplingState(parameters, 0, [1], 1, ())
    logits = np.array([[0.0, 3e38, 1.0]], dtype=np.float32)
    (token,), _ = draw_tokens(logits, [Draw(state, 0)])
    assert token == 1
    assert np.isfinite(logits).all()


def test_a_masked_token_has_the_floor_as_its_logprob_logprobs_01() -> None:
    parameters = msgspec.structs.replace(sampling(num_logprobs=3), min_tokens=1)
    _, (logprob,) = draw_tokens(rows(1, size=3), [drawn(parameters)])
    assert logprob is not None
    assert logprob.top[-1] == (2, LOGPROB_FLOOR)


@pytest.mark.parametrize("temperature", [0.0, 1e-7, 1e-30, 5e-324])
def test_tiny_temperatures_give_the_greedy_token_sampling_03(temperature: float) -> None:
    logits = rows(8)
    want = logits.argmax(axis=-1).tolist()
    tokens, _ = draw_tokens(logits, [drawn(sampling(temperature=temperature, top_p=1e-9))] * 8)
    assert list(tokens) == want


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
        tokens, _ = draw_tokens(np.repeat(row, 4000, axis=0), draws)
        counts = Counter(tokens)
        assert counts.keys() <= want.keys()
        distance = sum(abs(counts[token] / 4000 - p) for token, p in want.items()) / 2
        assert distance < 0.03  # about 0.01 is expected of 4,000 draws; the seeds are fixed


def test_a_draw_does_not_depend_on_its_neighbours_sampling_01() -> None:
    rng = random.Random(1)
    logits = rows(40)
    draws = [random_draw(rng, 301) for _ in range(40)]
    together, logprobs = draw_tokens(logits.copy(), draws)
    backwards, _ = draw_tokens(np.ascontiguousarray(logits[::-1]), draws[::-1])
    assert list(together) == list(backwards)[::-1]
    for index, each in enumerate(draws):
        (token,), (logprob,) = draw_tokens(logits[index : index + 1].copy(), [each])
        assert token == together[index]
        assert logprob == logprobs[index]


def test_seed_choice_and_position_each_change_the_draw() -> None:
    flat = np.zeros((1, 100_000), dtype=np.float32)
    tokens = {
        draw_tokens(flat.copy(), [drawn(sampling(seed=seed), position, choice)])[0][0]
        for seed in (0, 1)
        for choice in (0, 1)
        for position in (0, 1)
    }
    assert len(tokens) == 8


def test_each_row_gets_as_many_logprobs_as_it_asked_for() -> None:
    asked = [None, 0, 1, 5, 1000]
    _, logprobs = draw_tokens(rows(5), [drawn(sampling(num_logprobs=count)) for count in asked])
    assert logprobs[0] is None
    assert [len(each.top) for each in logprobs if each is not None] == [0, 1, 5, 301]


def test_nothing_is_left_to_compile_after_warming_up() -> None:
    warm_up()
    kernels = ("scan_rows", "collect", "sum_windows", "sum_buckets", "draw_by_id")
    before = {name: len(getattr(sampler_kernels, name).signatures) for name in kernels}
    assert set(before.values()) == {1}
    rng = random.Random(3)
    draw_tokens(rows(60, 2000, scale=1.0), [random_draw(rng, 2000) for _ in range(60)])
    assert before == {name: len(getattr(sampler_kernels, name).signatures) for name in kernels}
