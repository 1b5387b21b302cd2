"""Linear layers in plain Numba: the readable form of micro.py, which the tests hold it against.

It runs on every CPU but is slow; linear_portable.py serves those that have no kernels of their
own. The signatures are in linear.py.
"""

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.pack import COLUMNS, GROUP, LINE, Format

Q8_0, Q4_0, Q4_1 = int(Format.Q8_0), int(Format.Q4_0), int(Format.Q4_1)
BF16 = int(Format.BF16)
STEP = 4
HALF_STEPS = GROUP // STEP // 2
# 2 ** 112: the distance of float16's and float32's exponents.
HALF_TO_SINGLE = np.float32(2.0**112)


@intrinsic
def fma(typingctx: Any, left: Any, right: Any, plus: Any) -> Any:
    """left * right + plus in float32, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address for `carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), codegen


@intrinsic
def float_of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 of 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), codegen


@kernel
def _half(bits: Any) -> Any:
    """The float32 of a finite float16's bits, exactly, subnormals too."""
    sign = np.uint32(bits & np.uint16(0x8000)) << np.uint32(16)
    magnitude = np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13)
    value = float_of_bits(np.uint32(magnitude)) * HALF_TO_SINGLE
    return -value if sign else value


@kernel
def _bfloat(bits: Any) -> Any:
    """The float32 of a bfloat16's bits."""
    return float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@kernel
def _group_sum(w: Any, nibbles: int, group: int, column: int, xq: Any, n: Any) -> Any:
    """n + the sum of weight * activation over one group.

    w   [groups, steps, columns, 4]
    xq  [inputs]
    """
    at = group * GROUP
    for step in range(w.shape[1]):
        for i in range(STEP):
            value = np.int32(w[group, step, column, i])
            if nibbles:
                high = np.int32(xq[at + STEP * (step + HALF_STEPS) + i])
                n = np.int32(n + (value >> np.int32(4)) * high)
                value &= np.int32(15)
            n = np.int32(n + value * np.int32(xq[at + STEP * step + i]))
    return n


@kernel
def _quantized(
    kind: int,
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    groups = inputs // GROUP
    nibbles = kind != Q8_0
    steps = HALF_STEPS if nibbles else 2 * HALF_STEPS
    pairs = (groups + 1) // 2 if kind == Q4_1 else 0
    offset = np.int32(128 if kind == Q8_0 else 8)
    values = groups * steps * STEP * COLUMNS
    ends = values + groups * 2 * COLUMNS
    size = (ends + pairs * 4 * COLUMNS + LINE - 1) // LINE * LINE
    xq = carray(pointer(x), (rows, ldx), np.int8)
    scale = carray(pointer(xs), (rows, groups), np.float32)
    sums = carray(pointer(xsum), (rows, 2 * groups), np.int32)
    rests = carray(pointer(xsum), (rows, 4 * groups), np.uint16)
    for panel in range(first, end):
        at = w + panel * size
        weights = carray(pointer(at), (groups, steps, COLUMNS, STEP), np.uint8)
        halves = carray(pointer(at + values), (groups, COLUMNS), np.uint16)
        constants = carray(pointer(at + ends), (pairs, COLUMNS, 2), np.uint16)
        for row in range(rows):
            y = carray(pointer(out + 4 * (row * ldo + panel * COLUMNS)), (COLUMNS,), np.float32)
            for column in range(COLUMNS):
                total = np.float32(0)
                for group in range(groups):
                    start = np.int32(-offset * sums[row, group])
                    n = _group_sum(weights, nibbles, group, column, xq[row], start)
                    step = _half(halves[group, column]) * scale[row, group]
                    total = fma(np.float32(n), step, total)
                for pair in range(pairs):
                    for half in (1, 0):
                        rest = _bfloat(rests[row, 2 * groups + 2 * pair + half])
                        total = fma(_bfloat(constants[pair, column, half]), rest, total)
                y[column] = total


@kernel
def gemm_q8_0(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    _quantized(Q8_0, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


@kernel
def gemm_q4_0(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    _quantized(Q4_0, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


@kernel
def gemm_q4_1(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    _quantized(Q4_1, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


@kernel
def gemm_bf16(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    size = (inputs * COLUMNS * 2 + LINE - 1) // LINE * LINE
    values = carray(pointer(x), (rows, ldx), np.float32)
    for panel in range(first, end):
        weights = carray(pointer(w + panel * size), (inputs, COLUMNS), np.uint16)
        for row in range(rows):
            y = carray(pointer(out + 4 * (row * ldo + panel * COLUMNS)), (COLUMNS,), np.float32)
            y[:] = np.float32(0)
            for k in range(inputs):
                for column in range(COLUMNS):
                    y[column] = fma(_bfloat(weights[k, column]), values[row, k], y[column])


@kernel
def gemm_f32(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    size = (inputs * COLUMNS * 4 + LINE - 1) // LINE * LINE
    values = carray(pointer(x), (rows, ldx), np.float32)
    for panel in range(first, end):
        weights = carray(pointer(w + panel * size), (inputs, COLUMNS), np.float32)
        for row in range(rows):
            y = carray(pointer(out + 4 * (row * ldo + panel * COLUMNS)), (COLUMNS,), np.float32)
            y[:] = np.float32(0)
            for k in range(inputs):
                for column in range(COLUMNS):
                    y[column] = fma(weights[k, column], values[row, k], y[column])


@kernel
def gemm(
    kind: int,
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """Any format, `kind` being the Format's number; see linear.py."""
    if kind == BF16:
        gemm_bf16(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    elif kind in (Q8_0, Q4_0, Q4_1):
        _quantized(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    else:
        gemm_f32(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
