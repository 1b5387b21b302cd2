import numpy as np
import numpy.typing as npt
import pytest

from headway.compute.cpu.pairs import from_bits
from headway.compute.cpu.quantize import quantize_reference, quantize_rows

Result = tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.int32]]


def quantize(x: npt.NDArray[np.float32], inputs: int, first: int, end: int) -> Result:
    """Rows of x, whose row may be longer than `inputs`; other rows stay poisoned."""
    rows = len(x)
    xq = np.full((rows, inputs), 99, np.int8)
    xs = np.full((rows, inputs // 32), np.nan, np.float32)
    xsum = np.full((rows, inputs // 16), 9999, np.int32)
    addresses = (a.ctypes.data for a in (xq, xs, xsum))
    quantize_rows(x.ctypes.data, x.shape[1], first, end, inputs, *addresses)
    return xq, xs, xsum


def read_words(xsum: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Sums and pairs of rests; what is behind them is nobody's."""
    groups = xsum.shape[1] // 2
    return xsum[:, : groups + (groups + 1) // 2]


def assert_same(got: Result, want: Result) -> None:
    assert np.array_equal(got[0], want[0])
    assert np.array_equal(got[1], want[1])
    assert np.array_equal(read_words(got[2]), read_words(want[2]))


@pytest.mark.parametrize("inputs", [32, 64, 128, 160, 576])
@pytest.mark.parametrize("rows", [1, 3])
def test_bits_equal_those_of_the_reference(rows: int, inputs: int) -> None:
    rng = np.random.default_rng(inputs + rows)
    x = (rng.normal(size=(rows, inputs)) * 10.0 ** rng.integers(-8, 8, (rows, 1))).astype("f4")
    assert_same(quantize(x, inputs, 0, rows), quantize_reference(x))


def test_values_are_within_half_a_step_and_reach_127() -> None:
    x = np.random.default_rng(0).normal(size=(50, 320)).astype(np.float32)
    xq, xs, xsum = quantize(x, 320, 0, 50)
    groups = xq.reshape(50, 10, 32)
    error = np.abs(groups * xs[..., None].astype(np.float64) - x.reshape(50, 10, 32))
    assert (error <= 0.5001 * xs[..., None]).all()
    assert (np.abs(groups).max(axis=2) == 127).all()
    sums = groups.sum(axis=2, dtype=np.int32)
    assert np.array_equal(xsum[:, :10], sums)
    rests = from_bits(xsum[:, 10:15].view(np.uint16))
    assert (np.abs(rests - sums * xs.astype(np.float64)) <= np.abs(rests) / 256).all()


def test_halves_are_rounded_to_even() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, -0.5, -2.5, -126.5]
    xq, xs, _ = quantize(x, 32, 0, 1)
    assert xs.tolist() == [[1.0]]
    assert xq[0, :6].tolist() == [127, 0, 2, 0, -2, -126]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-31, 1e-45])
def test_a_group_of_nothing_has_scale_zero(value: float) -> None:
    x = np.full((1, 32), value, np.float32)
    xq, xs, xsum = quantize(x, 32, 0, 1)
    assert not xq.any()
    assert xs.tolist() == [[0.0]]
    assert xsum.tolist() == [[0, 0]]


def test_extreme_values_stay_finite() -> None:
    x = np.full((1, 64), 3e38, np.float32)
    x[0, 32:] = -2e-30
    xq, xs, _ = quantize(x, 64, 0, 1)
    assert xq.tolist() == [[127] * 32 + [-127] * 32]
    assert np.isfinite(xs).all()


def test_only_the_given_rows_are_written_and_the_row_may_be_longer() -> None:
    x = np.random.default_rng(1).normal(size=(4, 100)).astype(np.float32)
    got = quantize(x, 64, 1, 3)
    want = quantize_reference(np.ascontiguousarray(x[1:3, :64]))
    assert_same((got[0][1:3], got[1][1:3], got[2][1:3]), want)
    assert (got[0][[0, 3]] == 99).all()
    assert np.isnan(got[1][[0, 3]]).all()
    assert (got[2][[0, 3]] == 9999).all()
