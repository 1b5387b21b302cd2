"""The gate of the feed-forward layers."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.activation import gate_reference, gate_rows, quantize_gate_rows
from headway.compute.cpu.quantize import quantize_reference
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

SIZES = [1, 16, 17, 100, 1536]


def gated(gate_up: Floats, first: int = 0, rows: int | None = None) -> Floats:
    """Rows of it in an output full of NaN."""
    size = gate_up.shape[1] // 2
    out = np.full((len(gate_up), size), np.nan, dtype=np.float32)
    count = len(gate_up) if rows is None else rows
    at = gate_up[first:].ctypes.data
    gate_rows(at, at + 4 * size, 2 * size, size, count, out[first:].ctypes.data)
    return out


def case(size: int) -> Floats:
    """Gates and ups with some large values."""
    return 5 * np.random.default_rng(size).standard_normal((4, 2 * size), dtype=np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_gate_matches_float64(size: int) -> None:
    x = case(size)
    want = gate_reference(x)
    assert_close("gate", torch.from_numpy(gated(x)), torch.from_numpy(want))


@pytest.mark.parametrize("size", SIZES)
def test_a_row_alone_has_the_same_bits_and_no_other_is_written(size: int) -> None:
    x = case(size)
    want = gated(x)
    for row in range(4):
        alone = gated(x, row, 1)
        assert same_bits(alone[row], want[row])
        assert np.isfinite(alone).sum() == size


@pytest.mark.parametrize("size", [32, 64, 96, 160, 1536])
def test_quantized_gates_have_the_bits_of_gates_that_are_quantized_afterwards(size: int) -> None:
    x = case(size)
    x[1] = 0
    xq = np.full((5, size), 77, np.int8)
    xs = np.full((5, size // 32), np.nan, np.float32)
    xsum = np.full((5, size // 16), 9999, np.int32)
    at = x.ctypes.data
    addresses = (each.ctypes.data for each in (xq, xs, xsum))
    quantize_gate_rows(at, at + 4 * size, 2 * size, size, 4, *addresses)
    want_xq, want_xs, want_xsum = quantize_reference(gated(x))
    assert np.array_equal(xq[:4], want_xq)
    assert np.array_equal(xs[:4], want_xs)
    words = size // 32 + (size // 32 + 1) // 2
    assert np.array_equal(xsum[:4, :words], want_xsum[:, :words])
    assert (xq[4] == 77).all()
    assert np.isnan(xs[4]).all()
    assert (xsum[4] == 9999).all()


def test_extreme_gates_neither_overflow_nor_vanish() -> None:
    gates = np.array([-1e30, -200, -88, 0, 88, 200, 1e30], dtype=np.float32)
    out = gated(np.concatenate((gates, np.ones(7, np.float32)))[None])[0]
    assert np.abs(out[:3]).max() < 1e-30
    assert out[:2].tolist() == [0.0, 0.0]
    assert out[3:].tolist() == gates[3:].tolist()
