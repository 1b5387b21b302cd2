"""The gate of a feed-forward layer: silu(gate) * up."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    add,
    address_of,
    divide,
    exp,
    load,
    load_first,
    minus_magnitude,
    multiply,
    splat,
    store,
    store_first,
    where_negative,
)


@kernel
def silu_times_up(
    gate_up: Any, out: Any, first_row: int, end_row: int, first_column: int, end_column: int
) -> None:
    """Fill out[rows, columns] for a range of each; any cut of the ranges gives the same bits.

    gate_up  [T, >= 2 * size] float32, contiguous: gates, then ups
    out      [T, size] float32, contiguous
    """
    size = out.shape[1]
    whole = first_column + (end_column - first_column) // 16 * 16
    rest = end_column - whole
    for row in range(first_row, end_row):
        gate = address_of(gate_up) + 4 * row * gate_up.shape[1]
        up = gate + 4 * size
        target = address_of(out) + 4 * row * size
        for i in range(first_column, whole, 16):
            store(target + 4 * i, gated(load(gate + 4 * i), load(up + 4 * i)))
        if rest > 0:
            left, right = load_first(gate + 4 * whole, rest), load_first(up + 4 * whole, rest)
            store_first(target + 4 * whole, gated(left, right), rest)


@kernel
def gated(gate: Any, up: Any) -> Any:
    """silu(gate) * up of sixteen lanes; e**-|gate| cannot overflow."""
    power, one = exp(minus_magnitude(gate)), splat(np.float32(1.0))
    numerator = multiply(gate, where_negative(gate, power, one))
    return multiply(divide(numerator, add(one, power)), up)


def silu_times_up_reference(gate_up: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The same over the whole of [T, 2 * size], in float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    result: npt.NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up
    return result
