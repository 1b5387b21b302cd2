"""Additions to the residual stream and its normalisation."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.norm import add_rows, normalise_rows, rms_norm_reference
from headway.compute.cpu.quantize import quantize_reference
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

SIZES = [1, 15, 16, 17, 63, 64, 65, 576, 1000]
EPS = np.float32(1e-5)


def normalised(x: Floats, weight: Floats, more: Floats | None = None) -> Floats:
    """All rows at once into an output full of NaN; `more` is added to x before."""
    out = np.full_like(x, np.nan)
    at, ldm = (0, 0) if more is None else (more.ctypes.data, more.shape[1])
    rows, size = x.shape
    normalise_rows(
        x.ctypes.data, size, rows, at, ldm, weight.ctypes.data, EPS, out.ctypes.data, 0, 0, 0
    )
    return out


def case(size: int, rows: int = 5) -> tuple[Floats, Floats]:
    """Rows of very different sizes, and weights."""
    rng = np.random.default_rng(size)
    x = rng.standard_normal((rows, size), dtype=np.float32)
    x *= np.float32(10.0) ** np.arange(-2, rows - 2, dtype=np.float32)[:, None]
    return x, rng.standard_normal(size, dtype=np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_norm_matches_float64(size: int) -> None:
    x, weight = case(size)
    want = rms_norm_reference(x, weight, 1e-5)
    for row, got in enumerate(normalised(x, weight)):
        assert_close(f"row {row}", torch.from_numpy(got), torch.from_numpy(want[row]))


@pytest.mark.parametrize("size", SIZES)
def test_a_row_alone_has_the_same_bits(size: int) -> None:
    x, weight = case(size)
    together = normalised(x, weight)
    for row in range(len(x)):
        assert same_bits(normalised(x[row : row + 1].copy(), weight), together[row : row + 1])


@pytest.mark.parametrize("size", SIZES)
def test_what_is_added_comes_before_the_norm_and_without_the_padding_of_its_rows(
    size: int,
) -> None:
    x, weight = case(size)
    more = np.full((len(x), size + 5), np.nan, np.float32)
    more[:, :size] = 3
    want = x + np.float32(3)
    only_added = x.copy()
    got = normalised(x, weight, more)
    assert same_bits(x, want)
    assert same_bits(got, normalised(want, weight))
    add_rows(only_added.ctypes.data, size, len(x), more.ctypes.data, size + 5)
    assert same_bits(only_added, want)


@pytest.mark.parametrize("size", [32, 64, 96, 160, 576])
def test_quantized_norms_have_the_bits_of_norms_that_are_quantized_afterwards(size: int) -> None:
    x, weight = case(size)
    rows = len(x)
    xq = np.full((rows, size), 77, np.int8)
    xs = np.full((rows, size // 32), np.nan, np.float32)
    xsum = np.full((rows, size // 16), 9999, np.int32)
    to, scales, sums = (each.ctypes.data for each in (xq, xs, xsum))
    normalise_rows(x.ctypes.data, size, rows, 0, 0, weight.ctypes.data, EPS, 0, to, scales, sums)
    want_xq, want_xs, want_xsum = quantize_reference(normalised(x, weight))
    assert np.array_equal(xq, want_xq)
    assert np.array_equal(xs, want_xs)
    words = size // 32 + (size // 32 + 1) // 2
    assert np.array_equal(xsum[:, :words], want_xsum[:, :words])


def test_a_row_may_be_normalised_in_place_and_others_are_left_alone() -> None:
    x, weight = case(576)
    want = normalised(x, weight)
    want[[0, 4]] = x[[0, 4]]
    at = x[1:].ctypes.data
    normalise_rows(at, 576, 3, 0, 0, weight.ctypes.data, EPS, at, 0, 0, 0)
    assert same_bits(x, want)


def test_a_row_of_zeros_stays_zero() -> None:
    x, weight = np.zeros((1, 64), np.float32), np.ones(64, np.float32)
    assert not normalised(x, weight).any()
