"""The pool of K and V, and its number format."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headway.compute.cpu.kvpool import (
    ALIGNMENT,
    KvPool,
    KvShape,
    aligned_zeros,
    bytes_per_value,
    key_numbers,
    keys_by_position,
    store_bits,
    value_numbers,
    values_by_position,
)
from headway.compute.cpu.pairs import from_bits, to_bits
from headway.compute.cpu.rope import store_reference
from headway.compute.cpu.settings import KvDtype
from headway.core.base.errors import NotEnoughMemory

SHAPE = KvShape(num_layers=2, num_blocks=6, block_size=16, num_kv_heads=3, head_dim=32)


def test_keys_hold_pairs_of_dimensions_and_values_pairs_of_positions() -> None:
    pool = KvPool(SHAPE)
    assert pool.keys.shape == (2, 6, 3, 16, 16, 2)
    assert pool.values.shape == (2, 6, 3, 8, 32, 2)
    assert pool.keys.dtype == pool.values.dtype == np.uint16
    assert not pool.keys.any()
    assert pool.keys.ctypes.data % ALIGNMENT == pool.values.ctypes.data % ALIGNMENT == 0


def test_blocks_can_be_looked_at_position_by_position() -> None:
    pool = KvPool(SHAPE)
    pool.keys[1, 4, 2, 5, 9, 1] = 7  # dimension 11 of position 9
    pool.values[1, 4, 2, 5, 9, 1] = 8  # dimension 9 of position 11
    keys, values = keys_by_position(pool.keys[1]), values_by_position(pool.values[1])
    assert keys.shape == values.shape == (6, 3, 16, 32)
    assert (keys[4, 2, 9, 11], values[4, 2, 11, 9]) == (7, 8)
    assert (keys != 0).sum() == (values != 0).sum() == 1


def test_sources_are_read_before_targets_are_written() -> None:
    pool = KvPool(SHAPE)
    for block in range(6):
        pool.keys[:, block] = block
        pool.values[:, block] = 10 + block
    pool.copy_blocks([0, 1, 2], [1, 2, 5])
    assert pool.keys[1, :, 0, 0, 0, 0].tolist() == [0, 0, 1, 3, 4, 2]
    assert pool.values[0, :, 2, 7, 31, 1].tolist() == [10, 10, 11, 13, 14, 12]


def test_scales_of_eight_bits_are_copied_with_their_block() -> None:
    pool = KvPool(replace(SHAPE, dtype=KvDtype.INT8))
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 16, 3, 32), dtype=np.float32)
    for layer in range(2):
        store_reference(k, v, np.arange(16), pool.keys[layer], pool.values[layer])
    pool.copy_blocks([0], [4])
    for numbers, data in ((key_numbers, pool.keys), (value_numbers, pool.values)):
        assert np.array_equal(numbers(data[1])[4], numbers(data[1])[0])
        assert numbers(data[1])[4].any()


def test_a_block_of_eight_bits_takes_what_is_said_of_it() -> None:
    for dtype, per_value in ((KvDtype.BFLOAT16, 2.0), (KvDtype.INT8, 1.125)):
        pool = KvPool(replace(SHAPE, dtype=dtype))
        values = 2 * 2 * 6 * 16 * 3 * 32
        assert bytes_per_value(dtype, 32) == per_value
        assert pool.keys.nbytes + pool.values.nbytes == per_value * values


def test_copying_nothing_is_harmless() -> None:
    pool = KvPool(SHAPE)
    pool.copy_blocks([], [])
    assert not pool.keys.any()


def test_a_pool_that_does_not_fit_says_how_large_it_would_be() -> None:
    shape = KvShape(
        num_layers=1000, num_blocks=1 << 30, block_size=16, num_kv_heads=8, head_dim=128
    )
    with pytest.raises(NotEnoughMemory, match="--kv-cache-memory-bytes"):
        KvPool(shape)


def test_closing_twice_is_harmless() -> None:
    pool = KvPool(SHAPE)
    pool.close()
    pool.close()
    assert pool.keys.size == 0


@pytest.mark.parametrize("sizes", [(1,), (17, 3), (5, 1, 4)])
def test_aligned_zeros_start_at_a_cache_line(sizes: tuple[int, ...]) -> None:
    made = aligned_zeros(sizes, np.float32)
    assert made.shape == sizes
    assert made.ctypes.data % ALIGNMENT == 0
    assert made.flags.c_contiguous
    assert not made.any()


def numbers() -> np.ndarray:
    """All kinds of float32: random bits, ties, the largest, denormals, infinities, NaN."""
    random = np.random.default_rng(0).integers(0, 1 << 32, 10_000, dtype=np.uint32)
    ties = (np.arange(2000, dtype=np.uint32) << 15) + 0x3F800000
    special = np.array(
        [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 1], np.uint32
    )
    return np.concatenate((random, ties, special)).view(np.float32)


def test_rounding_is_that_of_torch() -> None:
    values = numbers()
    want = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bits(to_bits(values)), want)


def test_kernels_round_as_numpy_does() -> None:
    values = numbers()
    out = np.empty(values.size, dtype=np.uint16)
    store_bits(values, out)
    assert np.array_equal(out, to_bits(values))


def test_every_bfloat16_number_survives_the_way_there_and_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[np.isfinite(from_bits(bits))]
    assert np.array_equal(to_bits(from_bits(finite)), finite)


def test_a_block_s_bytes_of_all_layers_lie_together() -> None:
    pool = KvPool(SHAPE)
    for data in (pool.keys, pool.values):
        one_layer = data[0, 0].nbytes
        assert data.strides[:2] == (one_layer, SHAPE.num_layers * one_layer)
        assert data[0, 0].flags.c_contiguous
