import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.divergence import compare, interval, join, summarise


def logprobs(rows: list[list[float]]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = np.log(np.array(rows)).astype(np.float32)
    return found


def test_the_same_distributions_do_not_differ() -> None:
    logits = np.random.default_rng(0).standard_normal((130, 50))
    rows = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)
    figures = summarise(compare(rows, rows, np.arange(130) % 50))
    assert figures.positions == 130
    assert (figures.kl_mean, figures.kl_max) == (0.0, 0.0)
    assert (figures.top1, figures.top1_clear, figures.perplexity_ratio) == (1.0, 1.0, 1.0)


def test_figures_are_those_of_their_definitions() -> None:
    a = logprobs([[0.5, 0.25, 0.25], [0.4, 0.35, 0.25]])
    b = logprobs([[0.25, 0.5, 0.25], [0.35, 0.4, 0.25]])
    figures = summarise(compare(a, b, np.array([0, 2])))
    first = 0.5 * np.log(2) - 0.25 * np.log(2)
    second = 0.4 * np.log(0.4 / 0.35) + 0.35 * np.log(0.35 / 0.4)
    assert figures.kl_max == pytest.approx(first, abs=1e-6)
    assert figures.kl_mean == pytest.approx((first + second) / 2, abs=1e-6)
    assert figures.top1 == 0.0
    assert figures.clear_positions == 1  # the gaps are log 2 and log(8 / 7)
    assert figures.perplexity_a == pytest.approx((0.5 * 0.25) ** -0.5, rel=1e-6)
    assert figures.perplexity_b == pytest.approx(4.0, rel=1e-6)
    assert figures.perplexity_ratio == pytest.approx(2**0.5, rel=1e-6)


def test_agreement_where_the_choice_is_clear_counts_those_positions_only() -> None:
    a = logprobs([[0.6, 0.4], [0.9, 0.1]])
    b = logprobs([[0.4, 0.6], [0.8, 0.2]])
    figures = summarise(compare(a, b, np.array([0, 0])))
    assert (figures.top1, figures.clear_positions, figures.top1_clear) == (0.5, 1, 1.0)


def test_impossible_tokens_cost_nothing_where_the_reference_has_none() -> None:
    a = np.array([[0.0, -9999.0]], dtype=np.float32)
    b = logprobs([[0.5, 0.5]])
    assert summarise(compare(a, b, np.array([0]))).kl_mean == pytest.approx(np.log(2), abs=1e-6)


def test_texts_are_joined_by_their_positions() -> None:
    a, b = logprobs([[0.5, 0.5]]), logprobs([[0.25, 0.75]])
    one = compare(a, a, np.array([0]))
    other = compare(a, b, np.array([0]))
    figures = summarise(join([one, other, other]))
    assert figures.positions == 3
    assert figures.kl_mean == pytest.approx(summarise(other).kl_mean * 2 / 3)


def test_the_interval_holds_the_ratio_and_shrinks_with_the_number_of_positions() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (400, 6400):
        differences = rng.normal(0.01, 0.2, count)
        low, high = interval(differences)
        assert low < np.exp(differences.mean()) < high
        widths.append(high - low)
    assert widths[0] > 3 * widths[1]
    assert interval(np.full(100, 0.5)) == pytest.approx((np.exp(0.5), np.exp(0.5)))


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    alike = np.repeat(rng.normal(0.0, 0.2, 200), 32)
    low, high = interval(alike)
    mixed_low, mixed_high = interval(rng.permutation(alike))
    assert high - low > 3 * (mixed_high - mixed_low)
