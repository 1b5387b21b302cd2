import numpy as np
import pytest

from headway.compute.sampling.filters import choose, is_decided, is_filtered, pick
from headway.core.messages.path import Sampling
from tests.unit.compute.gpu.sampling.reference import sampling

# Weights 1, 1/2, 1/4, 1/8
HALVING = np.log(np.array([1.0, 0.5, 0.25, 0.125])) + 7.0
TOTAL = 1.875


def allowed(total: float | None, parameters: Sampling) -> int:
    """How many of the four may be drawn: the last that the highest chance draws."""
    return 1 + choose(HALVING, total, parameters, 1.0 - 2**-53)


def test_only_the_temperature_is_no_filter() -> None:
    assert not is_filtered(sampling(temperature=0.3))
    for each in (sampling(top_k=1), sampling(top_p=0.5), sampling(min_p=0.1)):
        assert is_filtered(each)


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    assert [allowed(TOTAL, sampling(top_p=p)) for p in (1e-9, 0.5, 0.55, 0.8, 0.81, 0.99)] == [
        1,
        1,
        2,
        2,
        3,
        4,
    ]


def test_top_p_is_of_what_top_k_left() -> None:
    assert allowed(None, sampling(top_k=2)) == 2
    assert allowed(None, sampling(top_k=2, top_p=0.6)) == 1
    assert allowed(None, sampling(top_k=2, top_p=0.7)) == 2


def test_min_p_is_relative_to_the_best_and_never_removes_it() -> None:
    assert [allowed(TOTAL, sampling(min_p=p)) for p in (0.1, 0.2, 0.3, 0.6, 1.0)] == [4, 3, 2, 1, 1]


def test_temperature_comes_before_the_filters() -> None:
    assert allowed(None, sampling(top_k=4, min_p=0.3, temperature=2.0)) == 4
    assert allowed(None, sampling(top_k=4, min_p=0.3, temperature=0.5)) == 1


@pytest.mark.parametrize(
    ("parameters", "decided"),
    [
        (sampling(top_p=0.9), True),
        (sampling(top_p=0.99), False),
        (sampling(min_p=0.2), True),
        (sampling(min_p=0.1), False),
        (sampling(top_p=0.99, min_p=0.2), True),
    ],
)
def test_candidates_decide_once_the_rest_cannot_pass(parameters: Sampling, decided: bool) -> None:
    assert is_decided(HALVING, 2.0, parameters) is decided


def test_candidates_never_decide_top_k() -> None:
    assert not is_decided(HALVING, None, sampling(top_k=9))


def test_a_token_of_no_weight_is_never_picked() -> None:
    cumulative = np.cumsum([0.0, 1.0, 0.0, 1.0, 0.0])
    picked = [pick(cumulative, chance) for chance in (0.0, 0.4999, 0.5, 1.0 - 2**-53)]
    assert picked == [1, 1, 3, 3]


def test_hopeless_candidates_do_not_overflow() -> None:
    values = np.array([3e38, -3e38])
    assert choose(values, None, sampling(top_k=2, temperature=1e-5), 0.999) == 0
