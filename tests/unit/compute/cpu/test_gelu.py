"""The gate that goes through gelu."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.gelu import gelu_reference, gelu_rows
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

SIZES = [1, 16, 17, 100, 1536]


def gated(gate_up: Floats, first: int = 0, rows: int | None = None) -> Floats:
    """Rows of it in an output full of NaN."""
    size = gate_up.shape[1] // 2
    out = np.full((len(gate_up), size), np.nan, dtype=np.float32)
    count = len(gate_up) if rows is None else rows
    at = gate_up[first:].ctypes.data
    gelu_rows(at, at + 4 * size, 2 * size, size, count, out[first:].ctypes.data)
    return out


def case(size: int) -> Floats:
    """Gates and ups with some large values."""
    return 5 * np.random.default_rng(size).standard_normal((4, 2 * size), dtype=np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_gates_are_those_of_the_definition_and_of_torch(size: int) -> None:
    gate_up = case(size)
    got = torch.from_numpy(gated(gate_up))
    assert_close("gelu", got, torch.from_numpy(gelu_reference(gate_up)))
    gate, up = torch.from_numpy(gate_up[:, :size]), torch.from_numpy(gate_up[:, size:])
    want = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert_close("gelu", got, want)


def test_ends_of_the_range_give_the_gate_or_nothing() -> None:
    ends = np.array([-np.inf, -1e30, -30.0, -0.0, 0.0, 30.0, 1e30], np.float32)
    got = gated(np.concatenate((ends, np.ones(7, np.float32)))[None])[0]
    assert np.isnan(got[0])
    assert np.array_equal(got[1:], np.array([0, 0, 0, 0, 30, 1e30], np.float32))


def test_rows_one_by_one_give_the_same_bits() -> None:
    gate_up = case(100)
    whole = gated(gate_up)
    for row in range(4):
        alone = gated(gate_up, row, 1)
        assert same_bits(alone[row], whole[row])
        alone[row] = np.nan
        assert np.isnan(alone).all(), "other rows are not touched"
