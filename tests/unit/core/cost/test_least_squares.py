"""Fitting a stream of observations."""

import pytest

from headway.core.cost.least_squares import LeastSquares


def test_observations_without_noise_give_their_weights() -> None:
    fit = LeastSquares((0.0, 0.0), (1e-9, 1e-9), decay=1.0)
    for x in ((1.0, 0.0), (1.0, 2.0), (1.0, 5.0)):
        fit.add(x, 3.0 * x[0] + 0.5 * x[1])
    assert fit.solve() == pytest.approx([3.0, 0.5])


def test_what_never_varied_keeps_its_prior() -> None:
    fit = LeastSquares((0.0, 7.0), (1e-9, 1e-9), decay=0.9)
    for _ in range(100):
        fit.add((1.0, 0.0), 4.0)
    assert fit.solve() == pytest.approx([4.0, 7.0])


def test_old_observations_lose_their_weight() -> None:
    fit = LeastSquares((0.0,), (1e-9,), decay=0.5)
    for y in [1.0] * 50 + [9.0] * 20:
        fit.add((1.0,), y)
    assert fit.solve() == pytest.approx([9.0], rel=1e-4)


def test_weights_are_never_negative() -> None:
    fit = LeastSquares((0.0, 0.0), (1e-9, 1e-9), decay=1.0)
    for x, y in (((1.0, 1.0), 1.0), ((1.0, 2.0), 0.5), ((1.0, 4.0), 0.1)):
        fit.add(x, y)
    base, slope = fit.solve()
    assert slope == 0.0
    assert base == pytest.approx((1.0 + 0.5 + 0.1) / 3)


def test_an_unknown_that_nobody_observed_and_no_prior_holds_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no pull"):
        LeastSquares((0.0,), (0.0,), decay=1.0).solve()
