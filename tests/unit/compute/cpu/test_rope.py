"""Rotary positions and the storing of K and V."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.kvpool import (
    KvPool,
    KvShape,
    key_numbers,
    value_numbers,
)
from headway.compute.cpu.norm import rms_norm_reference
from headway.compute.cpu.rope import (
    rotate_and_store,
    rotate_reference,
    rotation_tables,
    store_reference,
)
from headway.compute.cpu.settings import KvDtype
from tests.close import assert_close
from tests.unit.compute.cpu.attention_cases import Floats, same_bits

# query heads, KV heads, head_dim, pairs that turn, block size, further columns of a row
CASES = [
    (9, 3, 64, 32, 16, 0),
    (2, 1, 96, 20, 32, 5),
    (4, 4, 32, 1, 16, 0),
    (8, 1, 128, 64, 64, 48),
]

EPS = np.float32(1e-5)
Shape = tuple[int, int, int, int, int, int]


class Case:
    """A batch of 37 tokens in any order of positions and slots."""

    def __init__(self, case: Shape, dtype: KvDtype = KvDtype.BFLOAT16) -> None:
        self.heads, kv_heads, head_dim, pairs, block_size, further = case
        rng = np.random.default_rng(0)
        shape = KvShape(
            num_layers=1,
            num_blocks=5,
            block_size=block_size,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
        )
        self.pool = KvPool(shape)
        self.columns = (self.heads + 2 * kv_heads) * head_dim
        self.qkv = rng.standard_normal((37, self.columns + further), dtype=np.float32)
        self.tables = rotation_tables(10_000.0 ** -(np.arange(pairs) / pairs), 200)
        self.positions = rng.integers(0, 200, 37).astype(np.int32)
        self.norms = (0, 0)
        self.query_factor = np.float32(1.0)
        self.slots = rng.permutation(5 * block_size)[:37].astype(np.int32)

    def run(self, first: int, end: int) -> None:
        """Turn and store some tokens."""
        rotate_and_store(
            self.qkv,
            self.positions,
            self.slots,
            *self.tables,
            self.pool.keys[0],
            self.pool.values[0],
            self.heads,
            first,
            end,
            *self.norms,
            EPS,
            self.query_factor,
        )

    def by_head(self, qkv: Floats) -> Floats:
        """[T, heads of all kinds, head_dim]."""
        return qkv[:, : self.columns].reshape(37, -1, self.pool.shape.head_dim)


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_queries_and_keys_turn_and_the_rest_stays(shape: Shape) -> None:
    case = Case(shape)
    before = case.qkv.copy()
    case.run(0, 37)
    cosines, sines = (table[case.positions] for table in case.tables)
    want = rotate_reference(case.by_head(before), cosines, sines)
    turned = case.heads + case.pool.shape.num_kv_heads
    got = case.by_head(case.qkv)
    assert_close("q, k", torch.from_numpy(got[:, :turned]), torch.from_numpy(want[:, :turned]))
    assert same_bits(got[:, turned:], case.by_head(before)[:, turned:])
    assert same_bits(case.qkv[:, case.columns :], before[:, case.columns :])


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_heads_are_normalised_and_queries_scaled_before_they_turn(shape: Shape) -> None:
    case = Case(shape)
    before = case.qkv.copy()
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((2, case.pool.shape.head_dim), dtype=np.float32)
    case.norms = (weights[0].ctypes.data, weights[1].ctypes.data)
    case.query_factor = np.float32(0.75)
    case.run(0, 37)
    heads = case.by_head(before)
    turned = case.heads + case.pool.shape.num_kv_heads
    normed = np.concatenate(
        (
            rms_norm_reference(heads[:, : case.heads], weights[0], float(EPS)) * 0.75,
            rms_norm_reference(heads[:, case.heads : turned], weights[1], float(EPS)),
        ),
        axis=1,
    )
    cosines, sines = (table[case.positions] for table in case.tables)
    want = rotate_reference(normed.astype(np.float32), cosines, sines)
    got = case.by_head(case.qkv)
    assert_close("q, k", torch.from_numpy(got[:, :turned]), torch.from_numpy(want))
    assert same_bits(got[:, turned:], heads[:, turned:])


@pytest.mark.parametrize("dtype", KvDtype)
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_keys_and_values_are_stored_at_their_slots_and_nowhere_else(
    shape: Shape, dtype: KvDtype
) -> None:
    case = Case(shape, dtype)
    case.run(0, 37)
    keys, values = np.zeros_like(case.pool.keys[0]), np.zeros_like(case.pool.values[0])
    end_of_keys = case.heads + case.pool.shape.num_kv_heads
    heads = case.by_head(case.qkv)
    store_reference(
        heads[:, case.heads : end_of_keys], heads[:, end_of_keys:], case.slots, keys, values
    )
    assert np.array_equal(case.pool.keys[0], keys)
    assert np.array_equal(case.pool.values[0], values)


@pytest.mark.parametrize("dtype", KvDtype)
def test_tokens_one_by_one_give_the_same_bits(dtype: KvDtype) -> None:
    together, alone = Case(CASES[0], dtype), Case(CASES[0], dtype)
    together.run(0, 37)
    for token in (5, 0, *range(36, 5, -1), 1, 2, 3, 4):
        alone.run(token, token + 1)
    assert same_bits(alone.qkv, together.qkv)
    assert np.array_equal(alone.pool.keys, together.pool.keys)
    assert np.array_equal(alone.pool.values, together.pool.values)


def test_eight_bits_are_within_half_a_step_of_the_number() -> None:
    case = Case(CASES[0], KvDtype.INT8)
    case.run(0, 37)
    blocks, offsets = np.divmod(case.slots, 16)
    heads = case.by_head(case.qkv)
    for stored, first in (
        (key_numbers(case.pool.keys[0]), case.heads),
        (value_numbers(case.pool.values[0]), case.heads + 3),
    ):
        want = heads[:, first : first + 3]
        step = np.abs(want).max(axis=-1, keepdims=True) / 127
        rounding = np.abs(want) / 256 + step / 256  # of the product, to bfloat16
        error = np.abs(stored[blocks, :, offsets] - want)
        assert (error <= step / 2 + rounding).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_head_with_a_number_that_is_not_finite_is_read_as_nan(bad: float) -> None:
    case = Case(CASES[0], KvDtype.INT8)
    case.qkv[3, (9 + 3 + 1) * 64 + 5] = bad  # V of KV head 1
    case.run(0, 37)
    block, offset = divmod(int(case.slots[3]), 16)
    found = value_numbers(case.pool.values[0])[block, :, offset]
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_a_head_of_zeros_is_read_as_zeros() -> None:
    case = Case(CASES[0], KvDtype.INT8)
    case.qkv[3] = 0.0
    case.run(3, 4)
    assert not key_numbers(case.pool.keys[0]).any()
    assert not value_numbers(case.pool.values[0]).any()


def test_tables_are_rounded_from_float64() -> None:
    frequencies = 10_000.0 ** -(np.arange(32) / 32)
    cosines, sines = rotation_tables(frequencies, 5000)
    assert cosines.shape == sines.shape == (5000, 32)
    assert cosines[4999, 0] == np.float32(np.cos(4999.0))
    assert sines[4321, 7] == np.float32(np.sin(4321.0 * frequencies[7]))
