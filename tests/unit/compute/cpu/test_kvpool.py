"""The pool of K and V, and its number format."""

import numpy as np
import pytest
import torch

from headway.compute.cpu.kvpool import (
    ALIGNMENT,
    KvPool,
    KvShape,
    aligned_zeros,
    from_bits,
    store_bits,
    to_bits,
)
from headway.core.base.errors import NotEnoughMemory

SHAPE = KvShape(num_layers=2, num_blocks=6, block_size=16, num_kv_heads=3, head_dim=32)


def test_keys_hold_positions_side_by_side_and_values_hold_heads() -> None:
    pool = KvPool(SHAPE)
    assert pool.keys.shape == (2, 6, 3, 32, 16)
    assert pool.values.shape == (2, 6, 3, 16, 32)
    assert pool.keys.dtype == pool.values.dtype == np.uint16
    assert not pool.keys.any()
    assert pool.keys.ctypes.data % ALIGNMENT == pool.values.ctypes.data % ALIGNMENT == 0


def test_sources_are_read_before_targets_are_written() -> None:
    pool = KvPool(SHAPE)
    for block in range(6):
        pool.keys[:, block] = block
        pool.values[:, block] = 10 + block
    pool.copy_blocks([0, 1, 2], [1, 2, 5])
    assert pool.keys[1, :, 0, 0, 0].tolist() == [0, 0, 1, 3, 4, 2]
    assert pool.values[0, :, 2, 15, 31].tolist() == [10, 10, 11, 13, 14, 12]


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
