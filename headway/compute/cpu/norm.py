"""Root-mean-square normalisation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    add,
    address_of,
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
def rms_norm_rows(x: Any, weight: Any, eps: Any, out: Any, first_row: int, end_row: int) -> None:
    """Normalise rows first_row .. end_row - 1 of x [T, size] into out; x may be out.

    weight  [size] float32; eps is added to the mean of the squares. All arrays are
    contiguous float32. The sum of squares is 64 partial sums folded in one fixed order.
    """
    size = x.shape[1]
    scales = address_of(weight)
    whole = size // 16 * 16
    for row in range(first_row, end_row):
        source = address_of(x) + 4 * row * size
        target = address_of(out) + 4 * row * size
        mean = sum_of_squares(source, size) / np.float32(size)
        factor = splat(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
        for i in range(0, whole, 16):
            value = multiply(load(source + 4 * i), factor)
            store(target + 4 * i, multiply(value, load(scales + 4 * i)))
        if whole < size:
            rest = size - whole
            value = multiply(load_first(source + 4 * whole, rest), factor)
            value = multiply(value, load_first(scales + 4 * whole, rest))
            store_first(target + 4 * whole, value, rest)


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
