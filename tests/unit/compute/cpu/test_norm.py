"""Root-mean-square normalisation."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.norm import rms_norm_reference, rms_norm_rows
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

SIZES = [1, 15, 16, 17, 63, 64, 65, 576, 1000]


def normalised(x: Floats, weight: Floats, eps: float = 1e-5) -> Floats:
    """All rows at once into an output full of NaN."""
    out = np.full_like(x, np.nan)
    rms_norm_rows(x, weight, eps, out, 0, len(x))
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


def test_only_the_rows_asked_for_are_written() -> None:
    x, weight = case(17)
    out = np.full_like(x, np.nan)
    rms_norm_rows(x, weight, 1e-5, out, 1, 3)
    assert same_bits(out[1:3], normalised(x, weight)[1:3])
    assert np.isnan(out[[0, 3, 4]]).all()


def test_a_row_may_be_normalised_in_place() -> None:
    x, weight = case(576)
    want = normalised(x, weight)
    rms_norm_rows(x, weight, 1e-5, x, 0, len(x))
    assert same_bits(x, want)


def test_a_row_of_zeros_stays_zero() -> None:
    x, weight = np.zeros((1, 64), np.float32), np.ones(64, np.float32)
    assert not normalised(x, weight).any()
