"""Dot products of pairs of bfloat16 numbers, at any vector width.

Two neighbouring bfloat16 numbers are one 32-bit lane. A product of lanes adds both products
to a float32: the upper halves first, then the lower, each a fused multiply-add. AVX512_BF16
does so in one instruction, which takes subnormal numbers as zero; elsewhere the halves are
widened. Both give the same bits but for subnormals. What the CPU offers is asked here only.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from headway.compute.cpu import features

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]

HAS_DOT = "avx512bf16" in features.enabled()
WIDE = 16  # lanes that the instruction takes
UPPER = 0xFFFF0000
HALF_BITS = 16


class BfloatType(ir.Type):  # type: ignore[misc]  # llvmlite is not typed
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BfloatType)

    def __hash__(self) -> int:
        return hash(BfloatType)


def bfloats(count: int) -> Any:
    """LLVM's type of so many bfloat16 numbers."""
    return ir.VectorType(BfloatType(), count)


def emit_dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a's upper * b's upper, and then + the lower.

    total  a vector of float32; a and b as many 32-bit integers, lanes of pairs
    """
    floats = total.type
    if HAS_DOT and floats.count == WIDE:
        pairs = bfloats(2 * WIDE)
        kind = ir.FunctionType(floats, [floats, pairs, pairs])
        function = builder.module.declare_intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", (), kind)
        return builder.call(function, [total, builder.bitcast(a, pairs), builder.bitcast(b, pairs)])
    kind = ir.FunctionType(floats, [floats] * 3)
    fma = builder.module.declare_intrinsic(f"llvm.fma.v{floats.count}f32", (), kind)
    for half in (_emit_upper, _emit_lower):
        total = builder.call(fma, [half(builder, a, floats), half(builder, b, floats), total])
    return total


def emit_round_half(builder: Any, value: Any) -> Any:
    """bfloat16 bits, 16-bit integers, of float32 lanes: to nearest even, subnormals to zero."""

    def whole(number: int) -> Any:
        return ir.Constant(bits.type, [number] * bits.type.count)

    bits = builder.bitcast(value, ir.VectorType(ir.IntType(32), value.type.count))
    odd = builder.and_(builder.lshr(bits, whole(HALF_BITS)), whole(1))
    rounded = builder.add(builder.add(bits, odd), whole(0x7FFF))
    is_nan = builder.fcmp_unordered("uno", value, value)
    rounded = builder.select(is_nan, builder.or_(bits, whole(0x400000)), rounded)
    exponent = builder.and_(bits, whole(0x7F800000))
    is_subnormal = builder.icmp_unsigned("==", exponent, whole(0))
    rounded = builder.select(is_subnormal, whole(0), rounded)
    halves = ir.VectorType(ir.IntType(HALF_BITS), value.type.count)
    return builder.trunc(builder.lshr(rounded, whole(HALF_BITS)), halves)


def _emit_upper(builder: Any, pairs: Any, floats: Any) -> Any:
    mask = ir.Constant(pairs.type, [UPPER] * floats.count)
    return builder.bitcast(builder.and_(pairs, mask), floats)


def _emit_lower(builder: Any, pairs: Any, floats: Any) -> Any:
    shift = ir.Constant(pairs.type, [HALF_BITS] * floats.count)
    return builder.bitcast(builder.shl(pairs, shift), floats)


def to_bits(values: npt.NDArray[Any]) -> Bits:
    """bfloat16 bits of float32 numbers: rounded to nearest even, NaN kept."""
    wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), (bits | 0x400000) >> 16, rounded).astype(np.uint16)


def from_bits(bits: Bits) -> Floats:
    """The float32 numbers that bfloat16 bits stand for; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
