"""Pairs of bfloat16 numbers in attention: rounding, powers, and moves; products in pairs.py."""

from typing import Any

from llvmlite import ir
from numba import types

from headway.compute.cpu import features
from headway.compute.cpu.pairs import HAS_DOT, bfloats, emit_dot, emit_round_half
from headway.compute.cpu.vector import (
    ADDRESS,
    FLOAT,
    FLOATS,
    INT32,
    INT64,
    INTS,
    LANES,
    VECTOR,
    constant,
    emit_fma,
    emit_load,
    emit_splat,
    emit_store,
    int_constant,
    operation,
)

HAS_WIDE = "avx512f" in features.enabled()  # 32 registers of 16 lanes
LEAST_EXPONENT = -127.0


def emit_round(builder: Any, low: Any, high: Any) -> Any:
    """Lanes of pairs with 32 numbers in order, `low` before `high`.

    To nearest even; subnormals become zero.
    """
    if HAS_DOT:
        kind = ir.FunctionType(bfloats(2 * LANES), [FLOATS, FLOATS])
        function = builder.module.declare_intrinsic(
            "llvm.x86.avx512bf16.cvtne2ps2bf16.512", (), kind
        )
        return builder.bitcast(builder.call(function, [high, low]), INTS)
    halves = [emit_round_half(builder, part) for part in (low, high)]
    order = ir.Constant(ir.VectorType(INT32, 2 * LANES), list(range(2 * LANES)))
    return builder.bitcast(builder.shuffle_vector(*halves, order), INTS)


def emit_exp2(builder: Any, x: Any) -> Any:
    """2**x of x <= 0 within 3e-6 of it; 0 from -127 down; NaN gives NaN.

    x = n + r with |r| <= 1/2; 2**r = 1 + r p(r), where p is the cubic with the least worst
    relative error, fitted by weighted least squares. Below -126 it is a subnormal number.
    """
    magic = constant(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer
    least = constant(LEAST_EXPONENT)
    x = builder.select(builder.fcmp_ordered(">", least, x), least, x)
    shifted = builder.fadd(x, magic)
    r = builder.fsub(x, builder.fsub(shifted, magic))
    p = constant(0.009582852944731712)
    for coefficient in (0.055906426161527634, 0.24024099111557007, 0.6931241750717163, 1.0):
        p = emit_fma(builder, p, r, constant(coefficient))
    power = builder.shl(builder.bitcast(shifted, INTS), int_constant(23))
    return builder.bitcast(builder.add(builder.bitcast(p, INTS), power), FLOATS)


@operation(VECTOR, VECTOR)
def exp2(builder: Any, x: Any) -> Any:
    """2**x for x <= 0; see `emit_exp2`."""
    return emit_exp2(builder, x)


@operation(VECTOR, ADDRESS, ADDRESS, types.float32, VECTOR)
def soften_pair(builder: Any, source: Any, target: Any, top: Any, total: Any) -> Any:
    """2**(score - top) of 32 scores to 32 bfloat16; returns the total with them added.

    What is added is what was stored: lane i takes numbers 2i + 1 and 2i.
    """
    highest = emit_splat(builder, top)
    parts = []
    for offset in (0, 4 * LANES):
        place = builder.add(source, ir.Constant(INT64, offset))
        score = emit_load(builder, place, FLOATS, 4)
        parts.append(emit_exp2(builder, builder.fsub(score, highest)))
    pairs = emit_round(builder, *parts)
    emit_store(builder, target, pairs, 4)
    return emit_dot(builder, total, pairs, int_constant(0x3F803F80))


@operation(types.void, ADDRESS, types.float32, ADDRESS, types.intp)
def scatter_pairs(builder: Any, source: Any, factor: Any, target: Any, step: Any) -> None:
    """32 float32 times a factor to 16 pairs of bfloat16, each `step` bytes behind the last."""
    pairs = _emit_scaled(builder, source, factor)
    for lane in range(LANES):
        pair = builder.extract_element(pairs, ir.Constant(INT32, lane))
        emit_store(builder, target, pair, 4)
        target = builder.add(target, step)


@operation(types.void, ADDRESS, ADDRESS)
def scatter_halves(builder: Any, source: Any, target: Any) -> None:
    """32 float32 to bfloat16, each 4 bytes behind the last; what is between them stays."""
    kind = ir.VectorType(ir.IntType(16), 2 * LANES)
    numbers = builder.bitcast(_emit_scaled(builder, source, ir.Constant(FLOAT, 1.0)), kind)
    for lane in range(2 * LANES):
        number = builder.extract_element(numbers, ir.Constant(INT32, lane))
        emit_store(builder, builder.add(target, ir.Constant(INT64, 4 * lane)), number, 2)


def _emit_scaled(builder: Any, source: Any, factor: Any) -> Any:
    factors = emit_splat(builder, factor)
    parts = []
    for offset in (0, 4 * LANES):
        place = builder.add(source, ir.Constant(INT64, offset))
        parts.append(builder.fmul(emit_load(builder, place, FLOATS, 4), factors))
    return emit_round(builder, *parts)


@operation(types.void, ADDRESS, ADDRESS, ADDRESS)
def add_single(builder: Any, weight: Any, value: Any, out: Any) -> None:
    """Add 16 columns of the lower position of a pair, weighted, to float32 at `out`.

    weight  bfloat16 and whatever follows it; value: 16 lanes of pairs, of which the upper
    position is not looked at
    """
    factor = emit_load(builder, weight, INT32, 4)
    lower = int_constant(0xFFFF)
    factors = builder.and_(emit_splat(builder, factor, INTS), lower)
    columns = builder.and_(emit_load(builder, value, INTS, 4), lower)
    old = emit_load(builder, out, FLOATS, 4)
    emit_store(builder, out, emit_dot(builder, old, columns, factors), 4)
