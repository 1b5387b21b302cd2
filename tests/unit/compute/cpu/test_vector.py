"""Sixteen lanes as one value."""

from typing import Any

import numpy as np
import pytest

from headway.compute.cpu import vector
from headway.compute.cpu.jit import kernel
from tests.unit.compute.cpu.attention_cases import Floats


@kernel
def exp_all(x: Any, out: Any) -> None:
    """vector.exp of a multiple of sixteen numbers."""
    source, target = vector.address_of(x), vector.address_of(out)
    for i in range(0, 4 * x.size, 64):
        vector.store(target + i, vector.exp(vector.load(source + i)))


@kernel
def folds(x: Any) -> Any:
    """Sum, maximum and first lane of sixteen numbers."""
    value = vector.load(vector.address_of(x))
    return vector.sum_lanes(value), vector.max_lanes(value), vector.first_lane(value)


@kernel
def copy_some(x: Any, out: Any, count: int) -> None:
    """Read and write `count` lanes."""
    value = vector.load_first(vector.address_of(x), count)
    vector.store_first(vector.address_of(out), value, count)


@kernel
def keep_some(x: Any, out: Any, count: int) -> None:
    """Read all lanes, keep `count`."""
    value = vector.load(vector.address_of(x))
    kept = vector.keep_first(value, count, np.float32(-np.inf))
    vector.store(vector.address_of(out), kept)


def exp_of(*numbers: float) -> Floats:
    """exp of up to sixteen numbers."""
    x, out = np.zeros(16, np.float32), np.full(16, np.nan, np.float32)
    x[: len(numbers)] = numbers
    exp_all(x, out)
    return out[: len(numbers)]


def test_exp_is_within_one_unit_in_the_last_place() -> None:
    x = np.linspace(-87.3, 88.0, 16 * 50_000).astype(np.float32)
    out = np.full_like(x, np.nan)
    exp_all(x, out)
    want = np.exp(x.astype(np.float64))
    units = np.abs(out - want) / np.spacing(want.astype(np.float32))
    assert units.max() < 1.1


def test_exp_of_zero_is_one_and_far_below_it_nothing() -> None:
    assert exp_of(0.0, -0.0, -88.0, -1e30, -np.inf).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_exp_stays_finite_far_above_zero() -> None:
    high = exp_of(88.0, 89.0, 1e30, np.inf)
    assert np.isfinite(high).all()
    assert len(set(high.tolist())) == 1


def test_exp_of_nan_is_nan() -> None:
    assert np.isnan(exp_of(np.nan)).all()


def test_lanes_fold_to_their_sum_and_their_largest() -> None:
    x = np.arange(16, dtype=np.float32)[::-1] - 20
    total, largest, first = folds(x.copy())
    assert (total, largest, first) == (x.sum(), -5.0, -5.0)


@pytest.mark.parametrize("count", [0, 1, 15, 16])
def test_part_of_a_vector_reads_and_writes_no_more(count: int) -> None:
    x, out = np.arange(16, dtype=np.float32), np.full(16, np.nan, np.float32)
    copy_some(x[:count].copy() if count else np.zeros(1, np.float32), out, count)
    assert out[:count].tolist() == x[:count].tolist()
    assert np.isnan(out[count:]).all()


@pytest.mark.parametrize("count", [-3, 0, 1, 16, 300])
def test_lanes_behind_the_count_are_replaced_even_nan(count: int) -> None:
    x, out = np.full(16, np.nan, np.float32), np.zeros(16, np.float32)
    kept = min(16, max(0, count))
    x[:kept] = 2.0
    keep_some(x, out, count)
    assert out.tolist() == [2.0] * kept + [-np.inf] * (16 - kept)
