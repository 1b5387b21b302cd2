"""The other gate of a feed-forward layer: gelu(gate) * up, by the approximation with tanh.

0.5 x (1 + tanh(y)) is x / (1 + e**(-2 y)), with y = sqrt(2 / pi) (x + 0.044715 x**3).
Source: Hendrycks and Gimpel 2016.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    add,
    divide,
    exp,
    fma,
    load,
    load_first,
    minus_magnitude,
    multiply,
    splat,
    store,
    store_first,
    where_negative,
)

TWICE = float(np.float32(2 * np.sqrt(2 / np.pi)))
CUBIC = float(np.float32(0.044715))


@kernel
def gelu_rows(gate: int, up: int, ldg: int, size: int, rows: int, out: int) -> None:
    """gelu(gate) * up as float32; arguments as those of `gate_rows`."""
    whole = size // 16 * 16
    rest = size - whole
    for row in range(rows):
        left, right, target = gate + 4 * row * ldg, up + 4 * row * ldg, out + 4 * row * size
        for i in range(0, 4 * whole, 64):
            store(target + i, gelu(load(left + i), load(right + i)))
        if rest > 0:
            at = 4 * whole
            value = gelu(load_first(left + at, rest), load_first(right + at, rest))
            store_first(target + at, value, rest)


@kernel
def gelu(gate: Any, up: Any) -> Any:
    """gelu(gate) * up of sixteen lanes; the power of e is at most 1."""
    one = splat(np.float32(1.0))
    inner = fma(multiply(gate, gate), splat(np.float32(CUBIC)), one)
    twice = multiply(multiply(gate, inner), splat(np.float32(TWICE)))
    power = exp(minus_magnitude(twice))
    numerator = multiply(gate, where_negative(twice, power, one))
    return multiply(divide(numerator, add(one, power)), up)


def gelu_reference(gate_up: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The same over the whole of [T, 2 * size], in float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    y = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    result: npt.NDArray[np.float64] = 0.5 * gate * (1 + np.tanh(y)) * up
    return result
