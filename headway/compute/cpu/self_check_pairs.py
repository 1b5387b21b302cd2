"""Do the products of bfloat16 pairs, which attention is made of, compute what they should?

Which instruction serves is decided once, while attention is imported, so there is nothing to
fall back to in the same process: a start with wrong ones ends, and says with which it will work.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from headway.compute.cpu.attention_pairs import emit_round
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.pairs import HAS_DOT, emit_dot
from headway.compute.cpu.settings import Isa
from headway.compute.cpu.vector import (
    ADDRESS,
    FLOATS,
    INTS,
    LANES,
    VECTOR,
    constant,
    emit_load,
    operation,
    store,
)
from headway.core.base.errors import StartError

Kernel = Callable[[int, int, int], None]


@operation(VECTOR, ADDRESS, ADDRESS)
def dot(builder: Any, a: Any, b: Any) -> Any:
    """Products of two times sixteen pairs."""
    left, right = emit_load(builder, a, INTS, 4), emit_load(builder, b, INTS, 4)
    return emit_dot(builder, constant(0.0), left, right)


@operation(VECTOR, ADDRESS, ADDRESS)
def rounded(builder: Any, low: Any, high: Any) -> Any:
    """Sixteen pairs of 32 numbers, as the bits of floats."""
    values = [emit_load(builder, address, FLOATS, 4) for address in (low, high)]
    return builder.bitcast(emit_round(builder, *values), FLOATS)


@kernel
def dot_pairs(a: int, b: int, out: int) -> None:
    """Addresses of [32] bfloat16, twice, and of float32 [16], written."""
    store(out, dot(a, b))


@kernel
def round_pairs(low: int, high: int, out: int) -> None:
    """Addresses of float32 [16], twice, and of [32] bfloat16, written."""
    store(out, rounded(low, high))


def check_pairs(product: Kernel = dot_pairs, rounding: Kernel = round_pairs) -> None:
    """Raise StartError unless both compute exactly what they should.

    product, rounding  replaced in tests
    """
    try:
        problem = _problem_of(product, rounding)
    except (NumbaError, RuntimeError) as error:
        problem = f"cannot be compiled ({str(error).strip().splitlines()[-1:]})"
    if problem is not None:
        hint = f"start with --cpu-isa {Isa.AVX512_VNNI}" if HAS_DOT else "use --executor torch"
        raise StartError(f"attention's products of bfloat16 numbers {problem}; {hint}")


def _problem_of(product: Kernel, rounding: Kernel) -> str | None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-100, 101, size=(2, 2 * LANES)).astype(np.float32)
    a, b = (np.ascontiguousarray(row.view(np.uint32) >> 16, np.uint16) for row in whole)
    out = np.full(LANES, np.nan, np.float32)
    product(a.ctypes.data, b.ctypes.data, out.ctypes.data)
    if not np.array_equal(out, (whole[0] * whole[1]).reshape(LANES, 2).sum(axis=1)):
        return "are wrong"
    values = rng.normal(size=2 * LANES).astype(np.float32)
    bits = values.view(np.uint32)
    bits[:4] = (bits[:4] & 0xFFFE0000) | [0x8000, 0x18000, 0x7FFF, 0x8001]  # halves and beside
    got = np.zeros(2 * LANES, np.uint16)
    rounding(values.ctypes.data, values.ctypes.data + 4 * LANES, got.ctypes.data)
    expected = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return None if np.array_equal(got, expected) else "round wrongly"
