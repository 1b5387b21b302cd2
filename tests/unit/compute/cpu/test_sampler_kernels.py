"""The kernels against plain NumPy, over odd sizes; results are NaN or nonsense at first."""

import numpy as np
import numpy.typing as npt
import pytest

from headway.compute.cpu import sampler_kernels as fast
from headway.compute.cpu import sampler_reference as plain
from headway.compute.cpu.sampler_kernels import BLOCK, NUM_BUCKETS, WINDOW

SIZES = [1, 2, 63, 64, 65, 511, 513, 1031, 49152]
LOWEST = -fast.INFINITE
NAN, INF = float("nan"), float("inf")

Float32s = npt.NDArray[np.float32]


def logits(size: int, num_rows: int = 3) -> Float32s:
    values = np.random.default_rng(size).standard_normal((num_rows, size))
    return (4 * values).astype(np.float32)


def scanned(rows: Float32s) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    best_ids = np.full(len(rows), -77, dtype=np.int64)
    maxima = np.full((len(rows), -(-rows.shape[1] // BLOCK)), -77, dtype=np.int32)
    fast.scan_rows(rows.view(np.int32), best_ids, maxima)
    return best_ids, maxima


def poisoned(size: int) -> npt.NDArray[np.float64]:
    return np.full(size, NAN)


@pytest.mark.parametrize("size", SIZES)
def test_a_scan_finds_the_best_of_each_row_and_block(size: int) -> None:
    for rows in (logits(size), np.round(logits(size)) * np.float32(0.5)):
        want_ids, want_maxima = plain.scan_rows(rows)
        best_ids, maxima = scanned(rows)
        assert best_ids.tolist() == want_ids.tolist()
        assert maxima.tolist() == want_maxima.tolist()
        assert scanned(rows[1:2])[0].tolist() == want_ids[1:2].tolist()


@pytest.mark.parametrize("bad", [NAN, -NAN, INF])
@pytest.mark.parametrize("place", [0, 70, 100])
def test_a_scan_reports_rows_that_are_not_finite(bad: float, place: int) -> None:
    rows = logits(101)
    rows[1, place] = bad
    assert (scanned(rows)[0] < 0).tolist() == [False, True, False]


def test_minus_infinity_is_a_logit_like_others_unless_there_is_nothing_else() -> None:
    rows = np.full((2, 70), -INF, dtype=np.float32)
    rows[0, 66] = -5.0
    assert scanned(rows)[0].tolist() == [66, -1]


def test_both_zeros_are_equal() -> None:
    rows = np.array([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]], dtype=np.float32)
    assert scanned(rows)[0].tolist() == [1, 1]


@pytest.mark.parametrize("size", SIZES)
def test_collected_tokens_are_those_over_the_key_best_first(size: int) -> None:
    for row in (logits(size)[0], np.round(logits(size)[0])):
        keys = plain.keys(row)
        maxima = scanned(row[None])[1][0]
        for lowest in (LOWEST, int(np.median(keys)), int(keys.max()), int(keys.max()) + 1):
            found = np.full(size, -77, dtype=np.int64)
            count = fast.collect(row.view(np.int32), maxima, lowest, found)
            ids = np.sort(found[:count]) & 0xFFFFFFFF
            assert ids.tolist() == plain.collect(row, lowest).tolist()


@pytest.mark.parametrize("exponent", [0.0, -1e-300, -0.3, -1.0, -20.5, -699.8])
def test_weights_are_exponentials(exponent: float) -> None:
    row = np.linspace(exponent, exponent - 0.1, WINDOW - 3, dtype=np.float32)
    weights = poisoned(WINDOW)
    fast.weigh(row, 0.0, 1.0, weights)
    np.testing.assert_allclose(weights[:-3], np.exp(row.astype(np.float64)), rtol=2e-14)
    assert weights[-3:].tolist() == [0.0] * 3


def test_the_best_token_weighs_one_and_the_impossible_nothing() -> None:
    row = np.array([3.0, -INF, -1e30, -800.0], dtype=np.float32)
    weights = poisoned(WINDOW)
    fast.weigh(row, 3.0, 1.0, weights)
    assert weights[:4].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("coldness", [0.5, 1.0, 3.0])
def test_sums_of_windows_and_buckets_equal_the_reference(size: int, coldness: float) -> None:
    row = logits(size)[0]
    top = float(row.max())
    masses = poisoned(-(-size // WINDOW))
    total = fast.sum_windows(row, top, coldness, masses, poisoned(WINDOW))
    np.testing.assert_allclose(masses, plain.sum_windows(row, top, coldness), rtol=1e-12)
    assert total == pytest.approx(float(plain.weigh(row, top, coldness).sum()), rel=1e-12)
    buckets = np.zeros(NUM_BUCKETS)
    fast.sum_buckets(row, top, coldness, buckets, poisoned(WINDOW))
    want = plain.sum_buckets(row, top, coldness)
    # A weight on the edge of a bucket may fall on either side.
    np.testing.assert_allclose(np.cumsum(buckets), np.cumsum(want), rtol=0.02, atol=1e-12)
    assert buckets.sum() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_draws_in_the_order_of_ids_equal_the_reference(size: int) -> None:
    row = logits(size)[0]
    top = float(row.max())
    for index in range(200):
        chance = (index + 0.5) / 200
        masses = poisoned(-(-size // WINDOW))
        token = fast.draw_by_id(row, top, 1.0, chance, masses, poisoned(WINDOW))
        assert token == plain.draw_by_id(row, top, 1.0, chance), chance


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0 - 2**-53])
def test_an_impossible_token_is_never_drawn(chance: float) -> None:
    row = np.full(2000, -1e30, dtype=np.float32)
    row[[700, 1200]] = 0.0
    token = fast.draw_by_id(row, 0.0, 1.0, chance, poisoned(4), poisoned(WINDOW))
    assert token == (700 if chance < 0.5 else 1200)
