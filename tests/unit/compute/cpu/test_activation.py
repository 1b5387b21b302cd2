"""The gate of the feed-forward layers."""

import itertools

import numpy as np
import pytest
import torch

from headway.compute.cpu.activation import silu_times_up, silu_times_up_reference
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

SIZES = [1, 16, 17, 100, 1536]


def gated(gate_up: Floats) -> Floats:
    """All of it into an output full of NaN."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = np.full((rows, size), np.nan, dtype=np.float32)
    silu_times_up(gate_up, out, 0, rows, 0, size)
    return out


def case(size: int) -> Floats:
    """Gates and ups with some large values."""
    return 5 * np.random.default_rng(size).standard_normal((3, 2 * size), dtype=np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_gate_matches_float64(size: int) -> None:
    x = case(size)
    want = silu_times_up_reference(x)
    assert_close("gate", torch.from_numpy(gated(x)), torch.from_numpy(want))


@pytest.mark.parametrize("size", SIZES)
def test_any_cut_of_rows_and_columns_gives_the_same_bits(size: int) -> None:
    x = case(size)
    out = np.full((3, size), np.nan, dtype=np.float32)
    cuts = sorted({0, size // 3, size // 2 + 1, size})
    for row in range(3):
        for first, end in itertools.pairwise(cuts):
            silu_times_up(x, out, row, row + 1, first, end)
    assert same_bits(out, gated(x))


def test_nothing_outside_the_range_is_written() -> None:
    x = case(100)
    out = np.full((3, 100), np.nan, dtype=np.float32)
    silu_times_up(x, out, 1, 2, 20, 55)
    assert np.isfinite(out[1, 20:55]).all()
    assert np.isfinite(out).sum() == 35


def test_extreme_gates_neither_overflow_nor_vanish() -> None:
    gates = np.array([-1e30, -200, -88, 0, 88, 200, 1e30], dtype=np.float32)
    out = gated(np.concatenate((gates, np.ones(7, np.float32)))[None])[0]
    assert np.abs(out[:3]).max() < 1e-30
    assert out[:2].tolist() == [0.0, 0.0]
    assert out[3:].tolist() == gates[3:].tolist()
