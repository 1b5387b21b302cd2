"""Activations to 8 bits, with one scale for each group of 32.

    scale = max |x| / 127      q = round(x * (127 / max |x|)), halves to even
    sum = sum of the group's q      rest = scale * sum as bfloat16

A group whose largest value is under 1e-30 counts as zeros. Portable vector code: LLVM cuts
it to what the machine has, and every machine computes the same bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.micro_emit import F32, I8, I32, Emit
from headway.compute.cpu.pack import GROUP
from headway.compute.cpu.pairs import emit_round_half, to_bits
from headway.compute.cpu.vector import ADDRESS, LANES, VECTOR, load, operation

LEAST = 1e-30
# Adding 1.5 * 2**23 leaves the rounded integer in a float32's low bits.
ROUND = 12582912.0


@operation(types.void, *[VECTOR] * 2, *[ADDRESS] * 4)
def quantize_one(builder: Any, low: Any, high: Any, xq: Any, xs: Any, xsum: Any, rest: Any) -> None:
    """One group from two vectors; writes 32 int8, a float32, an int32, a bfloat16 and a zero."""
    e = Emit(builder, GROUP)
    lanes = ir.Constant(e.ints, list(range(GROUP)))
    values = builder.shuffle_vector(low, high, lanes)
    up, scale = _factors(builder, e.largest(values), ir.Constant)
    whole = _rounded(e, builder.fmul(values, e.splat(up)))
    e.store(builder.trunc(whole, ir.VectorType(I8, GROUP)), xq, 1)
    total = e.reduce_add(whole)
    e.store(scale, xs, 4)
    e.store(total, xsum, 4)
    # Lane 1 is what follows an odd last group in its pair; any other group overwrites it.
    one = Emit(builder, 2)
    both = builder.insert_element(one.zero(), _rest(builder, scale, total), ir.Constant(I32, 0))
    e.store(emit_round_half(builder, both), rest, 2)


@operation(types.void, *[VECTOR] * 8, *[ADDRESS] * 4)
def quantize_four(
    builder: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    f: Any,
    g: Any,
    h: Any,
    i: Any,
    xq: Any,
    xs: Any,
    xsum: Any,
    rest: Any,
) -> None:
    """The same for four groups, from eight vectors: they share what is done across lanes."""
    e, few = Emit(builder, LANES), Emit(builder, 4)
    vectors = (a, b, c, d, f, g, h, i)
    bits = [builder.and_(builder.bitcast(v, e.ints), e.whole(0x7FFFFFFF)) for v in vectors]

    def larger(left: Any, right: Any) -> Any:
        return builder.select(builder.icmp_unsigned(">", left, right), left, right)

    largest = builder.bitcast(_fold(builder, bits, larger), few.floats)
    up, scale = _factors(builder, largest, lambda _kind, value: few.whole_float(value))
    wholes = []
    for number, vector in enumerate(vectors):
        lane = ir.Constant(e.ints, [number // 2] * LANES)
        value = _rounded(e, builder.fmul(vector, builder.shuffle_vector(up, up, lane)))
        e.store(builder.trunc(value, ir.VectorType(I8, LANES)), e.at(xq, LANES * number), 1)
        wholes.append(value)
    total = _fold(builder, wholes, builder.add)
    e.store(scale, xs, 4)
    e.store(total, xsum, 4)
    e.store(emit_round_half(builder, _rest(builder, scale, total)), rest, 2)


def _rest(b: Any, scale: Any, total: Any) -> Any:
    return b.fmul(scale, b.sitofp(total, scale.type))


def _fold(b: Any, vectors: Any, combine: Any) -> Any:
    """Four lanes, each of two neighbouring vectors folded to one number."""
    pairs = [combine(vectors[i], vectors[i + 1]) for i in range(0, 8, 2)]
    halves = [_combine_parts(b, pairs[i], pairs[i + 1], 8, combine) for i in (0, 2)]
    quarters = _combine_parts(b, halves[0], halves[1], 4, combine)
    for distance in (2, 1):
        order = ir.Constant(quarters.type, [lane ^ distance for lane in range(LANES)])
        quarters = combine(quarters, b.shuffle_vector(quarters, quarters, order))
    firsts = ir.Constant(ir.VectorType(I32, 4), [0, 4, 8, 12])
    return b.shuffle_vector(quarters, quarters, firsts)


def _combine_parts(b: Any, left: Any, right: Any, size: int, combine: Any) -> Any:
    """Runs of 2 * size lanes of both vectors, one after the other, each folded to `size`."""
    lanes = range(2 * LANES)
    lower = ir.Constant(left.type, [lane for lane in lanes if lane // size % 2 == 0])
    upper = ir.Constant(left.type, [lane for lane in lanes if lane // size % 2 == 1])
    return combine(b.shuffle_vector(left, right, lower), b.shuffle_vector(left, right, upper))


def _factors(b: Any, largest: Any, constant: Any) -> Any:
    """What values are multiplied with, and the scale."""

    def number(value: float) -> Any:
        return constant(F32, _float32(value))

    is_zero = b.fcmp_ordered("<", largest, number(LEAST))
    safe = b.select(is_zero, number(1.0), largest)
    up = b.select(is_zero, number(0.0), b.fdiv(number(127.0), safe))
    return up, b.select(is_zero, number(0.0), b.fdiv(safe, number(127.0)))


def _rounded(e: Emit, values: Any) -> Any:
    """To integers, halves to even."""
    shifted = e.b.fadd(values, e.whole_float(ROUND))
    return e.b.sub(e.b.bitcast(shifted, e.ints), e.b.bitcast(e.whole_float(ROUND), e.ints))


def _float32(value: float) -> float:
    return float(np.float32(value))


@kernel
def quantize_rows(
    x: int, ldx: int, first_row: int, end_row: int, num_inputs: int, xq: int, xs: int, xsum: int
) -> None:
    """Rows [first_row, end_row) of activations; all arguments are integers.

    x           address of float32 [rows, ldx >= num_inputs]
    num_inputs  a multiple of 32
    xq          address of int8 [rows, num_inputs], written
    xs          address of float32 [rows, num_inputs / 32], written: scales
    xsum        address of 32-bit words [rows, 2 * groups], written: of each row the sums of
                its groups, int32, and behind them the rests, bfloat16, as pairs of groups;
                what an odd last group has no partner for is zero
    """
    groups = num_inputs // GROUP
    for row in range(first_row, end_row):
        sums = xsum + 8 * row * groups
        rests = sums + 4 * groups
        fours = groups // 4 * 4
        for group in range(0, fours, 4):
            at, to = x + 4 * (row * ldx + GROUP * group), row * groups + group
            quantize_four(
                load(at),
                load(at + 64),
                load(at + 128),
                load(at + 192),
                load(at + 256),
                load(at + 320),
                load(at + 384),
                load(at + 448),
                xq + GROUP * to,
                xs + 4 * to,
                sums + 4 * group,
                rests + 2 * group,
            )
        for group in range(fours, groups):
            at, to = x + 4 * (row * ldx + GROUP * group), row * groups + group
            quantize_one(
                load(at),
                load(at + 64),
                xq + GROUP * to,
                xs + 4 * to,
                sums + 4 * group,
                rests + 2 * group,
            )


def quantize_reference(
    x: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """The same in NumPy, for reading: [rows, inputs] to (xq, xs, xsum)."""
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    largest = np.abs(groups).max(axis=2)
    is_zero = largest < np.float32(LEAST)
    safe = np.where(is_zero, np.float32(1), largest)
    up = np.where(is_zero, np.float32(0), np.float32(127) / safe)
    xq = np.rint(groups * up[..., None]).astype(np.int8)
    xs = np.where(is_zero, np.float32(0), safe / np.float32(127))
    return xq.reshape(x.shape), xs, sums_and_rests(xq.sum(axis=2, dtype=np.int32), xs)


def sums_and_rests(
    sums: npt.NDArray[np.int32], scales: npt.NDArray[np.float32]
) -> npt.NDArray[np.int32]:
    """xsum [rows, 2 * groups], as `quantize_rows` writes it, but for words that nobody reads."""
    rows, groups = sums.shape
    words = np.zeros((rows, 2 * groups), np.int32)
    words[:, :groups] = sums
    rests = to_bits(scales * sums.astype(np.float32))
    words[:, groups:].view(np.uint16)[:, :groups] = rests
    return words
