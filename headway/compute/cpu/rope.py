"""Rotary positions, and the way of K and V into the pool."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.kvpool import Bits, Floats, to_bits
from headway.compute.cpu.vector import (
    address_of,
    fma,
    load_first,
    multiply,
    splat,
    store_first,
    subtract,
    to_bfloat16,
)


def rotation_tables(
    inverse_frequencies: npt.NDArray[np.float64], num_positions: int
) -> tuple[Floats, Floats]:
    """Cosines and sines, float32 [num_positions, F], computed in float64."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inverse_frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@kernel
def rotate_and_store(
    qkv: Any,
    positions: Any,
    slots: Any,
    cosines: Any,
    sines: Any,
    keys: Any,
    values: Any,
    num_heads: int,
    first_token: int,
    end_token: int,
) -> None:
    """Rotate Q and K of some tokens in place, and put K and V into their slots of one layer.

    qkv             [T, (num_heads + 2 * kv heads) * head_dim or more] float32, contiguous
    positions       [T] int32
    slots           [T] int32 or int64: block * block_size + offset
    cosines, sines  [positions, F] float32; values i and i + F of a head turn together, and
                    what lies behind 2 F <= head_dim is left as it is
    keys            [blocks, kv heads, head_dim / 2, block_size, 2] uint16, bfloat16 bits
    values          [blocks, kv heads, block_size / 2, head_dim, 2] uint16

    The caller sees to it that no two tokens have one slot.
    """
    num_kv_heads, head_dim, block_size = keys.shape[1], values.shape[3], keys.shape[3]
    pairs = cosines.shape[1]
    for token in range(first_token, end_token):
        cosine = address_of(cosines) + 4 * pairs * positions[token]
        sine = address_of(sines) + 4 * pairs * positions[token]
        row = address_of(qkv) + 4 * token * qkv.shape[1]
        for head in range(num_heads + num_kv_heads):
            rotate(row + 4 * head * head_dim, cosine, sine, pairs)
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(num_kv_heads):
            key_column = (num_heads + head) * head_dim
            value_column = key_column + num_kv_heads * head_dim
            for d in range(0, head_dim, 2):
                low, high = qkv[token, key_column + d], qkv[token, key_column + d + 1]
                keys[block, head, d // 2, offset, 0] = to_bfloat16(low)
                keys[block, head, d // 2, offset, 1] = to_bfloat16(high)
            for d in range(head_dim):
                number = to_bfloat16(qkv[token, value_column + d])
                values[block, head, offset // 2, d, offset % 2] = number


@kernel
def rotate(head: int, cosine: int, sine: int, pairs: int) -> None:
    """Turn one head in place."""
    for i in range(0, pairs, 16):
        count = min(16, pairs - i)
        low_place, high_place = head + 4 * i, head + 4 * (pairs + i)
        low, high = load_first(low_place, count), load_first(high_place, count)
        c, s = load_first(cosine + 4 * i, count), load_first(sine + 4 * i, count)
        negative = subtract(splat(np.float32(0.0)), high)
        store_first(low_place, fma(negative, s, multiply(low, c)), count)
        store_first(high_place, fma(low, s, multiply(high, c)), count)


def rotate_reference(x: Floats, cosines: Floats, sines: Floats) -> npt.NDArray[np.float64]:
    """x [T, heads, head_dim] turned by the tokens' cosines and sines [T, F], in float64."""
    pairs = cosines.shape[1]
    out = x.astype(np.float64)
    low, high = out[..., :pairs].copy(), out[..., pairs : 2 * pairs].copy()
    c, s = cosines[:, None].astype(np.float64), sines[:, None].astype(np.float64)
    out[..., :pairs] = low * c - high * s
    out[..., pairs : 2 * pairs] = high * c + low * s
    return out


def store_reference(
    k: Floats, v: Floats, slots: npt.NDArray[Any], keys: Bits, values: Bits
) -> None:
    """Put k and v [T, kv heads, head_dim] into the slots of one layer's keys and values."""
    blocks, offsets = np.divmod(slots, keys.shape[3])
    keys[blocks, :, :, offsets] = to_bits(k).reshape(*k.shape[:2], -1, 2)
    values[blocks, :, offsets // 2, :, offsets % 2] = to_bits(v)
