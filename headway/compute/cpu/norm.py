"""Additions to the residual stream, and its root-mean-square normalisation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.pack import GROUP
from headway.compute.cpu.quantize import quantize_four, quantize_one
from headway.compute.cpu.vector import (
    add,
    fma,
    load,
    load_first,
    multiply,
    splat,
    store,
    store_first,
    sum_lanes,
)


@kernel
def normalise_rows(
    x: int,
    size: int,
    rows: int,
    more: int,
    ldm: int,
    weight: int,
    eps: Any,
    out: int,
    xq: int,
    xs: int,
    xsum: int,
) -> None:
    """Add to the residual stream, then its norm, as float32 or quantized: one pass over a row.

    All but `eps`, which is added to the mean of the squares, are integers:

    x              address of float32 [rows, size], contiguous; x += more, unless more is 0
    more           address of float32 [rows, ldm >= size]
    weight         address of float32 [size]
    out            address of float32 [rows, size], written; may be x. 0: quantize instead,
    xq, xs, xsum   as in `quantize_rows`; size is then a multiple of 32
    """
    for row in range(rows):
        at = x + 4 * row * size
        if more != 0:
            add_row(at, more + 4 * row * ldm, size)
        factor = norm_factor(at, size, eps)
        if out != 0:
            scale_row(at, factor, weight, size, out + 4 * row * size)
        else:
            group = row * (size // GROUP)
            to = xq + row * size
            quantize_scaled_row(at, factor, weight, size, to, xs + 4 * group, xsum + 8 * group)


@kernel
def add_rows(x: int, size: int, rows: int, more: int, ldm: int) -> None:
    """x += more, as in `normalise_rows`."""
    for row in range(rows):
        add_row(x + 4 * row * size, more + 4 * row * ldm, size)


@kernel
def add_row(x: int, more: int, size: int) -> None:
    """x += more of `size` float32."""
    whole = size // 16 * 16
    for i in range(0, 4 * whole, 64):
        store(x + i, add(load(x + i), load(more + i)))
    if whole < size:
        at, rest = 4 * whole, size - whole
        store_first(x + at, add(load_first(x + at, rest), load_first(more + at, rest)), rest)


@kernel
def norm_factor(x: int, size: int, eps: Any) -> Any:
    """What a row is multiplied with, in every lane."""
    mean = sum_of_squares(x, size) / np.float32(size)
    return splat(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))


@kernel
def scale_row(x: int, factor: Any, weight: int, size: int, out: int) -> None:
    """x * factor * weight."""
    whole = size // 16 * 16
    for i in range(0, 4 * whole, 64):
        store(out + i, scaled(x + i, factor, weight + i))
    if whole < size:
        at, rest = 4 * whole, size - whole
        value = multiply(load_first(x + at, rest), factor)
        store_first(out + at, multiply(value, load_first(weight + at, rest)), rest)


@kernel
def quantize_scaled_row(
    x: int, factor: Any, weight: int, size: int, xq: int, xs: int, xsum: int
) -> None:
    """The same, quantized."""
    groups = size // GROUP
    rest = xsum + 4 * groups
    fours = groups // 4 * 4
    for group in range(0, fours, 4):
        at, scales = x + 4 * GROUP * group, weight + 4 * GROUP * group
        quantize_four(
            scaled(at, factor, scales),
            scaled(at + 64, factor, scales + 64),
            scaled(at + 128, factor, scales + 128),
            scaled(at + 192, factor, scales + 192),
            scaled(at + 256, factor, scales + 256),
            scaled(at + 320, factor, scales + 320),
            scaled(at + 384, factor, scales + 384),
            scaled(at + 448, factor, scales + 448),
            xq + GROUP * group,
            xs + 4 * group,
            xsum + 4 * group,
            rest + 2 * group,
        )
    for group in range(fours, groups):
        at, scales = x + 4 * GROUP * group, weight + 4 * GROUP * group
        low, high = scaled(at, factor, scales), scaled(at + 64, factor, scales + 64)
        to, scale = xq + GROUP * group, xs + 4 * group
        quantize_one(low, high, to, scale, xsum + 4 * group, rest + 2 * group)


@kernel
def scaled(x: int, factor: Any, weight: int) -> Any:
    """Sixteen numbers, normalised."""
    return multiply(multiply(load(x), factor), load(weight))


@kernel
def sum_of_squares(source: int, size: int) -> Any:
    """Sum of the squares of `size` float32: lane i % 64 takes element i, then a fixed tree."""
    a = splat(np.float32(0.0))
    b, c, d = a, a, a
    whole = size // 64 * 64
    for i in range(0, whole, 64):
        place = source + 4 * i
        value = load(place)
        a = fma(value, value, a)
        value = load(place + 64)
        b = fma(value, value, b)
        value = load(place + 128)
        c = fma(value, value, c)
        value = load(place + 192)
        d = fma(value, value, d)
    for i in range(whole, size, 16):
        value = load_first(source + 4 * i, size - i)
        a = fma(value, value, a)
    return sum_lanes(add(add(a, b), add(c, d)))


def rms_norm_reference(
    x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32], eps: float
) -> npt.NDArray[np.float64]:
    """x / rms(x) * weight over the last axis, in float64."""
    wide = x.astype(np.float64)
    mean = np.square(wide).mean(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = wide / np.sqrt(mean + eps) * weight
    return result
