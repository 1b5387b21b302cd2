"""Ways to sum products of unsigned weights and signed activations over a group, exactly.

Each is used as: `start` once a cell, `operand` once a row and step, `step` once a cell and
step, `finish` once a cell. A step is four inputs in every lane of 32 bits.
"""

from typing import Any, Protocol

from llvmlite import ir

from headway.compute.cpu.micro_emit import I8, I16, I32, Emit


class Dot(Protocol):
    """One way, for one vector width."""

    def start(self, e: Emit, offset: Any) -> Any:
        """An accumulator; `offset` is the int32 vector to add to the sum."""

    def operand(self, e: Emit, fours: Any) -> Any:
        """Four activations, the same in every lane, made ready."""

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """The accumulator plus one step's products."""

    def finish(self, e: Emit, total: Any, offset: Any) -> Any:
        """The int32 sum, with the offset."""


class Vnni:
    """vpdpbusd, of AVX-512 VNNI or AVX-VNNI."""

    def start(self, e: Emit, offset: Any) -> Any:
        """See Dot."""
        return offset

    def operand(self, e: Emit, fours: Any) -> Any:
        """See Dot."""
        return fours

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """See Dot."""
        bytes_ = ir.VectorType(I8, 4 * e.lanes)
        args = [total, e.b.bitcast(weights, bytes_), e.b.bitcast(operand, bytes_)]
        return e.call(f"llvm.x86.avx512.vpdpbusd.{32 * e.lanes}", e.ints, args)

    def finish(self, e: Emit, total: Any, offset: Any) -> Any:
        """See Dot."""
        return total


class VnniPair(Vnni):
    """The same with two accumulators in turn: in tiles of few cells one would be waited for."""

    def start(self, e: Emit, offset: Any) -> Any:
        """See Dot."""
        return offset, e.whole(0)

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """See Dot."""
        now, other = total
        return other, super().step(e, now, weights, operand)

    def finish(self, e: Emit, total: Any, offset: Any) -> Any:
        """See Dot."""
        return e.b.add(*total)


class Words:
    """AVX2 for bytes of any value: even and odd bytes as 16-bit numbers, vpmaddwd."""

    def start(self, e: Emit, offset: Any) -> Any:
        """See Dot."""
        return offset

    def operand(self, e: Emit, fours: Any) -> Any:
        """See Dot."""
        words = e.b.bitcast(fours, ir.VectorType(I16, 2 * e.lanes))
        eight = ir.Constant(words.type, [8] * (2 * e.lanes))
        return e.b.ashr(e.b.shl(words, eight), eight), e.b.ashr(words, eight)

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """See Dot."""
        words = ir.VectorType(I16, 2 * e.lanes)
        even = e.b.bitcast(e.b.and_(weights, e.whole(0x00FF00FF)), words)
        odd = e.b.lshr(e.b.bitcast(weights, words), ir.Constant(words, [8] * (2 * e.lanes)))
        for part, values in zip((even, odd), operand, strict=True):
            total = e.b.add(total, e.call("llvm.x86.avx2.pmadd.wd", e.ints, [part, values]))
        return total

    def finish(self, e: Emit, total: Any, offset: Any) -> Any:
        """See Dot."""
        return total


class Portable(Words):
    """As Words, in instructions of no particular CPU; LLVM finds what the machine has."""

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """See Dot."""
        count = 2 * e.lanes
        words, wide = ir.VectorType(I16, count), ir.VectorType(I32, count)
        even = e.b.bitcast(e.b.and_(weights, e.whole(0x00FF00FF)), words)
        odd = e.b.lshr(e.b.bitcast(weights, words), ir.Constant(words, [8] * count))
        for part, values in zip((even, odd), operand, strict=True):
            products = e.b.mul(e.b.sext(part, wide), e.b.sext(values, wide))
            pair = [
                e.b.shuffle_vector(
                    products,
                    ir.Constant(wide, ir.Undefined),
                    ir.Constant(e.ints, list(range(first, count, 2))),
                )
                for first in (0, 1)
            ]
            total = e.b.add(total, e.b.add(*pair))
        return total


class Bytes:
    """AVX2 for weights of 0 to 15: vpmaddubsw, summed in 16 bits.

    A group's sum in one 16-bit lane is at most 8 steps * 2 * 15 * 128 = 30720: no overflow.
    """

    def start(self, e: Emit, offset: Any) -> Any:
        """See Dot."""
        return ir.Constant(ir.VectorType(I16, 2 * e.lanes), [0] * (2 * e.lanes))

    def operand(self, e: Emit, fours: Any) -> Any:
        """See Dot."""
        return e.b.bitcast(fours, ir.VectorType(I8, 4 * e.lanes))

    def step(self, e: Emit, total: Any, weights: Any, operand: Any) -> Any:
        """See Dot."""
        args = [e.b.bitcast(weights, ir.VectorType(I8, 4 * e.lanes)), operand]
        return e.b.add(total, e.call("llvm.x86.avx2.pmadd.ub.sw", total.type, args))

    def finish(self, e: Emit, total: Any, offset: Any) -> Any:
        """See Dot."""
        ones = ir.Constant(total.type, [1] * (2 * e.lanes))
        return e.b.add(offset, e.call("llvm.x86.avx2.pmadd.wd", e.ints, [total, ones]))
