"""Rotary positions, and the way of K and V into the pool."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.attention_int8 import HIGHEST, LEAST, store_head
from headway.compute.cpu.attention_pairs import scatter_halves, scatter_pairs
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.kvpool import SCALE_BYTES, Stored
from headway.compute.cpu.norm import norm_factor, scale_row
from headway.compute.cpu.pairs import Floats, to_bits
from headway.compute.cpu.vector import (
    address_of,
    fma,
    load,
    load_first,
    multiply,
    splat,
    store,
    store_first,
    subtract,
)


def rotation_tables(
    inverse_frequencies: npt.NDArray[np.float64], num_positions: int, scale: float = 1.0
) -> tuple[Floats, Floats]:
    """Cosines and sines times `scale`, float32 [num_positions, F], computed in float64."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inverse_frequencies)
    cosines, sines = scale * np.cos(angles), scale * np.sin(angles)
    return cosines.astype(np.float32), sines.astype(np.float32)


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
    query_norm: int,
    key_norm: int,
    eps: Any,
    query_factor: Any,
) -> None:
    """Rotate Q and K of some tokens in place, and put K and V into their slots of one layer.

    qkv             [T, (num_heads + 2 * kv heads) * head_dim or more] float32, contiguous
    positions       [T] int32
    slots           [T] int32 or int64: block * block_size + offset
    cosines, sines  [positions, F] float32; values i and i + F of a head turn together, and
                    what lies behind 2 F <= head_dim is left as it is
    keys            [blocks, kv heads, head_dim / 2, block_size, 2] uint16, bfloat16 bits, or int8;
                    only its blocks may lie apart
    query_norm,     addresses of float32 [head_dim]: each head is normalised before it turns,
    key_norm        with `eps` added to the mean of its squares; 0: it is not
    query_factor    float32 that queries are multiplied by
    values          [blocks, kv heads, block_size / 2, head_dim, 2] as keys; see KvShape for int8

    The caller sees to it that no two tokens have one slot.
    """
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    head_dim = values.shape[3] - (SCALE_BYTES if values.itemsize == 1 else 0)
    pairs = cosines.shape[1]
    for token in range(first_token, end_token):
        cosine = address_of(cosines) + 4 * pairs * positions[token]
        sine = address_of(sines) + 4 * pairs * positions[token]
        row = address_of(qkv) + 4 * token * qkv.shape[1]
        normalise_heads(row, num_heads, head_dim, query_norm, eps)
        normalise_heads(row + 4 * num_heads * head_dim, num_kv_heads, head_dim, key_norm, eps)
        if query_factor != np.float32(1.0):
            for at in range(row, row + 4 * num_heads * head_dim, 64):
                store(at, multiply(load(at), splat(query_factor)))
        for head in range(num_heads + num_kv_heads):
            rotate(row + 4 * head * head_dim, cosine, sine, pairs)
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(num_kv_heads):
            key = row + 4 * (num_heads + head) * head_dim
            value = key + 4 * num_kv_heads * head_dim
            if keys.itemsize == 1:
                store_in_8_bits(key, value, keys, values, block, head, offset, head_dim)
            else:
                store_in_16_bits(key, value, keys, values, block, head, offset, head_dim)


@kernel
def normalise_heads(first: int, count: int, head_dim: int, weight: int, eps: Any) -> None:
    """The norm of each of some heads that follow each other; none where `weight` is 0."""
    if weight != 0:
        for head in range(first, first + 4 * count * head_dim, 4 * head_dim):
            scale_row(head, norm_factor(head, head_dim, eps), weight, head_dim, head)


@kernel
def store_in_16_bits(
    key: int, value: int, keys: Any, values: Any, block: int, head: int, offset: int, head_dim: int
) -> None:
    """One head of one token as bfloat16; key and value are addresses of float32."""
    block_size = keys.shape[3]
    target = address_of(keys) + block * keys.strides[0] + head * keys.strides[1] + 4 * offset
    step = 4 * block_size
    for d in range(0, head_dim, 32):
        scatter_pairs(key + 4 * d, np.float32(1.0), target + d // 2 * step, step)
    target = address_of(values) + block * values.strides[0] + head * values.strides[1]
    target += 4 * (offset // 2) * head_dim + 2 * (offset % 2)
    for d in range(0, head_dim, 32):
        scatter_halves(value + 4 * d, target + 4 * d)


@kernel
def store_in_8_bits(
    key: int, value: int, keys: Any, values: Any, block: int, head: int, offset: int, head_dim: int
) -> None:
    """The same with numbers of 8 bits and their scales."""
    block_size = keys.shape[3]
    target = address_of(keys) + block * keys.strides[0] + head * keys.strides[1]
    scale = target + head_dim * block_size + SCALE_BYTES * offset
    store_head(key, head_dim, target + 2 * offset, 2 * block_size, 1, scale)
    target = address_of(values) + block * values.strides[0] + head * values.strides[1]
    target += offset // 2 * 2 * (head_dim + SCALE_BYTES)
    scale = target + 2 * head_dim + SCALE_BYTES * (offset % 2)
    store_head(value, head_dim, target + offset % 2, 4, 2, scale)


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
    k: Floats, v: Floats, slots: npt.NDArray[Any], keys: Stored, values: Stored
) -> None:
    """Put k and v [T, kv heads, head_dim] into the slots of one layer's keys and values."""
    blocks, offsets = np.divmod(slots, keys.shape[3])
    if keys.dtype == np.int8:
        numbers, scales = _to_8_bits(k)
        behind = scales.view(np.int8).reshape(*k.shape[:2], SCALE_BYTES)
        head_dim, block_size = k.shape[-1], keys.shape[3]
        pairs = numbers.reshape(*k.shape[:2], head_dim // 2, 2)
        keys[blocks, :, : head_dim // 2, offsets] = pairs
        flat = keys.reshape(*keys.shape[:2], -1)
        for i in range(SCALE_BYTES):
            flat[blocks, :, head_dim * block_size + SCALE_BYTES * offsets + i] = behind[..., i]
        numbers, scales = _to_8_bits(v)
        behind = scales.view(np.int8).reshape(*v.shape[:2], SCALE_BYTES)
        values[blocks, :, offsets // 2, :head_dim, offsets % 2] = numbers
        lines = values.reshape(*values.shape[:3], -1)
        for i in range(SCALE_BYTES):
            column = 2 * head_dim + SCALE_BYTES * (offsets % 2) + i
            lines[blocks, :, offsets // 2, column] = behind[..., i]
        return
    keys[blocks, :, :, offsets] = to_bits(k).reshape(*k.shape[:2], k.shape[2] // 2, 2)
    values[blocks, :, offsets // 2, :, offsets % 2] = to_bits(v)


def _to_8_bits(x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Numbers [T, heads, head_dim] and their scales [T, heads]."""
    highest = np.abs(x).max(axis=-1)
    is_zero = highest < LEAST
    up = np.where(is_zero, np.float32(0), HIGHEST / np.where(is_zero, np.float32(1), highest))
    scales = np.where(is_zero, np.float32(0), highest / HIGHEST)
    return np.rint(x * up[..., None]).astype(np.int8), scales
