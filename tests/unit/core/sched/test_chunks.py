"""How long a chunk of a prompt may be."""

import pytest

from headway.core.base.units import Seconds
from headway.core.cost.work import StepWork
from headway.core.sched.chunks import GRAIN, LEAST_CHUNK, StepBudget

TARGET = Seconds(0.15)


def machine(work: StepWork, *, row: float = 1e-3) -> Seconds:
    decode = 3e-3 + row * work.decode_rows
    return Seconds(decode + 4e-4 * work.prefill_tokens + 3e-7 * work.prefill_pairs)


def trained(target: Seconds | None = TARGET, *, row: float = 1e-3) -> StepBudget:
    """A budget of 256 tokens that has seen decodes and prompts on that machine."""
    budget = StepBudget(256, target)
    for i in range(40):
        for with_prompt in (False, True):
            budget.begin()
            for _ in range(1 + i % 8):
                budget.take(500, 1)
            if with_prompt:
                budget.take(256 * (i % 30), 128)
            budget.cost.observe(budget.work, machine(budget.work, row=row))
    budget.begin()
    return budget


def beside_streams(budget: StepBudget, count: int = 8) -> StepBudget:
    for _ in range(count):
        budget.take(500, 1)
    return budget


def test_without_streams_only_tokens_bound_a_chunk() -> None:
    assert trained().chunk(8000, 1000) == 256


def test_without_a_target_only_tokens_bound_a_chunk() -> None:
    assert beside_streams(trained(None)).chunk(8000, 1000) == 248


def test_before_anything_was_measured_only_tokens_bound_a_chunk() -> None:
    assert beside_streams(StepBudget(256, TARGET)).chunk(8000, 1000) == 248


@pytest.mark.spec("C8")
@pytest.mark.parametrize("start", [0, 100, 1000, 4000, 8000])
def test_a_chunk_beside_streams_is_as_long_as_the_target_allows(start: int) -> None:
    budget = beside_streams(trained())
    num_tokens = budget.chunk(start, 5000)
    budget.take(start, num_tokens)
    assert machine(budget.work) <= TARGET
    if num_tokens < 248:
        assert num_tokens % GRAIN == 0
        budget.give_back(start, num_tokens)
        budget.take(start, num_tokens + 3 * GRAIN)
        assert machine(budget.work) > 0.8 * TARGET, "it is hardly shorter than it need be"


def test_chunks_become_shorter_with_their_distance_from_the_start() -> None:
    budget = beside_streams(trained())
    sizes = [budget.chunk(start, 5000) for start in (0, 1000, 2000, 4000, 8000, 16000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[-1]


def test_a_first_prompt_always_goes_on_and_a_second_one_may_wait() -> None:
    budget = beside_streams(trained())
    assert budget.chunk(10**6, 5000) == LEAST_CHUNK
    assert budget.chunk(10**6, 5) == 5
    budget.take(10**6, LEAST_CHUNK)
    assert budget.chunk(10**6, 5000) == 0


def test_the_end_of_a_prompt_need_not_be_a_whole_grain() -> None:
    assert beside_streams(trained()).chunk(1000, 21) == 21


def test_a_target_that_decodes_alone_would_miss_does_not_starve_prompts() -> None:
    budget = beside_streams(trained(row=50e-3))
    num_tokens = budget.chunk(4000, 5000)
    decode = machine(budget.work, row=50e-3)
    assert decode > TARGET
    budget.take(4000, num_tokens)
    assert 1.3 * decode < machine(budget.work, row=50e-3) <= 1.55 * decode


def test_what_is_given_back_is_there_again() -> None:
    budget = beside_streams(trained())
    before = budget.chunk(3000, 5000)
    budget.take(3000, before)
    assert budget.chunk(3000, 5000) < before
    budget.give_back(3000, before)
    assert budget.chunk(3000, 5000) == before
