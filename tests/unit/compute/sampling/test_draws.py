from headway.compute.sampling.adjustments import adjustment, needs_adjusting
from headway.compute.sampling.draws import Draw
from headway.compute.sampling.logprobs import token_logprob
from headway.core.base.philox import uniform
from headway.core.messages.path import LOGPROB_FLOOR, Sampling
from headway.core.messages.step import SamplingState


def draw(sampling: Sampling, position: int = 3) -> Draw:
    return Draw(SamplingState(sampling, 2, [5, 5, 9, 8, 8], 2, (1,)), position)


def test_the_chance_is_a_function_of_seed_choice_and_position() -> None:
    assert draw(Sampling(max_tokens=9, seed=77)).chance == uniform(77, 2, 3)


def test_the_smallest_temperatures_are_greedy() -> None:
    for temperature, is_greedy in ((0.0, True), (9e-6, True), (1e-5, False), (1.0, False)):
        each = draw(Sampling(max_tokens=9, seed=0, temperature=temperature))
        assert each.is_greedy is is_greedy


def test_an_adjustment_names_each_penalised_token_once() -> None:
    each = draw(
        Sampling(
            max_tokens=9,
            seed=0,
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=1.0,
            logit_bias=((4, 2.0), (4, 3.0)),
            min_tokens=4,
        )
    )
    change = adjustment(each)
    assert needs_adjusting(each)
    assert change.repeated.tolist() == [5, 8, 9]
    assert change.lowered.tolist() == [8, 9]
    assert change.lowered_by.tolist() == [2.0, 1.5]
    assert change.biased.tolist() == [4, 4]
    assert change.bias.tolist() == [2.0, 3.0]
    assert change.masked.tolist() == [1]


def test_parts_that_are_not_asked_for_are_empty() -> None:
    each = draw(Sampling(max_tokens=9, seed=0, min_tokens=3))
    assert not needs_adjusting(each)
    change = adjustment(each)
    parts = change.repeated, change.lowered, change.biased, change.masked, change.allowed
    assert {len(part) for part in parts} == {0}


def test_listed_candidates_are_best_first_equal_ones_by_id_and_never_below_the_floor() -> None:
    best = [(7, -1e30), (3, -1.0), (9, 0.0), (2, -1.0)]
    each = token_logprob(7, -1e30, best, 0.5)
    assert each.logprob == LOGPROB_FLOOR
    assert each.top == ((9, -0.5), (2, -1.5), (3, -1.5), (7, LOGPROB_FLOOR))
