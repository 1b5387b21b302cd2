"""The gate of a feed-forward layer: silu(gate) * up."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.pack import GROUP
from headway.compute.cpu.quantize import quantize_four, quantize_one
from headway.compute.cpu.vector import (
    add,
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
def gate_rows(gate: int, up: int, ldg: int, size: int, rows: int, out: int) -> None:
    """silu(gate) * up as float32; all arguments are integers.

    gate, up  addresses of float32 [rows, size], ldg values from one row to the next
    out       address of float32 [rows, size], contiguous, written
    """
    whole = size // 16 * 16
    rest = size - whole
    for row in range(rows):
        left, right, target = gate + 4 * row * ldg, up + 4 * row * ldg, out + 4 * row * size
        for i in range(0, 4 * whole, 64):
            store(target + i, gated(load(left + i), load(right + i)))
        if rest > 0:
            at = 4 * whole
            value = gated(load_first(left + at, rest), load_first(right + at, rest))
            store_first(target + at, value, rest)


@kernel
def quantize_gate_rows(
    gate: int, up: int, ldg: int, size: int, rows: int, xq: int, xs: int, xsum: int
) -> None:
    """The same, quantized without a way through memory.

    size          a multiple of 32
    xq, xs, xsum  as in `quantize_rows`, written
    """
    groups = size // GROUP
    fours = groups // 4 * 4
    for row in range(rows):
        left, right = gate + 4 * row * ldg, up + 4 * row * ldg
        sums = xsum + 8 * row * groups
        rests = sums + 4 * groups
        for group in range(0, fours, 4):
            to = row * groups + group
            quantize_four(
                gated(load(left), load(right)),
                gated(load(left + 64), load(right + 64)),
                gated(load(left + 128), load(right + 128)),
                gated(load(left + 192), load(right + 192)),
                gated(load(left + 256), load(right + 256)),
                gated(load(left + 320), load(right + 320)),
                gated(load(left + 384), load(right + 384)),
                gated(load(left + 448), load(right + 448)),
                xq + GROUP * to,
                xs + 4 * to,
                sums + 4 * group,
                rests + 2 * group,
            )
            left += 4 * GROUP * 4
            right += 4 * GROUP * 4
        for group in range(fours, groups):
            low = gated(load(left), load(right))
            high = gated(load(left + 64), load(right + 64))
            to = row * groups + group
            total, rest = sums + 4 * group, rests + 2 * group
            quantize_one(low, high, xq + GROUP * to, xs + 4 * to, total, rest)
            left += 4 * GROUP
            right += 4 * GROUP


@kernel
def gated(gate: Any, up: Any) -> Any:
    """silu(gate) * up of sixteen lanes; e**-|gate| cannot overflow."""
    power, one = exp(minus_magnitude(gate)), splat(np.float32(1.0))
    numerator = multiply(gate, where_negative(gate, power, one))
    return multiply(divide(numerator, add(one, power)), up)


def gate_reference(gate_up: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The same over the whole of [T, 2 * size], in float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    result: npt.NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up
    return result
