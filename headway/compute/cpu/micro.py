"""Micro-kernels of the quantized linear layers, written as LLVM IR.

One micro-kernel multiplies a few rows of activations with the columns of one panel, over
all groups of 32 inputs. For each group, in ascending order, and for each output:

    n   = sum of code * activation over the group                 int32, exact
    t   = d * xs                                                  float32
    acc = fma(float32(n), t, acc)

and after all groups, Q4_1 only, for each pair of them, in ascending order:

    acc = fma(upper group's c, its rest, acc), then fma(lower group's c, its rest, acc)

Every variant does exactly these float operations in this order, so their bits agree. Codes
are unsigned bytes; the offset of 128 of 8 bits and that of 8 of 4 bits are taken back by
starting the integer sum at -offset * xsum. `c` is what Q4_1 adds to each weight after that,
and `rest` is xs * xsum, both bfloat16: a pair is one instruction where there is AVX512_BF16
(pairs.py). With the offset out of it c is small against the weights, and so is its rounding.

The layout of a panel is in pack.py.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headway.compute.cpu.micro_dot import Bytes, Dot, Portable, Vnni, VnniPair, Words
from headway.compute.cpu.micro_emit import F32, I32, I64, Emit
from headway.compute.cpu.pack import BLOCK_BYTES, COLUMNS, GROUP, Format
from headway.compute.cpu.pairs import emit_dot

STEP = 4  # inputs of one dot product instruction
STEPS = GROUP // STEP
STEP_BYTES = COLUMNS * STEP
LINE = 64
# What the integer sum must give back, as a shift of xsum.
OFFSET_SHIFT = {Format.Q8_0: 7, Format.Q4_0: 3, Format.Q4_1: 3}


@dataclass(frozen=True)
class Tile:
    """Size of a micro-kernel's output: `rows` by `vectors` of `lanes` columns."""

    rows: int
    vectors: int = 3
    lanes: int = 16

    @property
    def is_whole_panel(self) -> bool:
        """Else it is called for a part of the columns, and prefetches nothing."""
        return self.vectors * self.lanes == COLUMNS


@dataclass(frozen=True)
class Operands:
    """Addresses (and row strides in bytes) of one call, as LLVM values."""

    weights: Any
    scales: Any
    constants: Any
    groups: Any
    xq: Any
    xq_stride: Any
    xs: Any
    xsum: Any
    xs_stride: Any
    out: Any
    out_stride: Any
    ahead: Any
    ahead_stride: Any


def _dot(format_: Format, tile: Tile, *, vnni: bool) -> Dot:
    if vnni:
        return VnniPair() if tile.lanes == 8 else Vnni()
    if tile.lanes == 4:
        return Portable()
    return Words() if format_ is Format.Q8_0 else Bytes()


def quantized(format_: Format, tile: Tile, *, vnni: bool = True) -> Any:
    """An intrinsic: (weights, scales, constants, groups, xq, xq_stride, xs, xsum, xs_stride,
    out, out_stride, ahead, ahead_stride), all intp; addresses and strides in bytes.

    xs and xsum are those of `quantize_rows`; only Q4_1 reads constants. With each group a
    group's worth of memory from `ahead` on is fetched into the cache, and `ahead` moves on by
    `ahead_stride`.

    vnni  whether the CPU has the 8-bit dot product at this width; else AVX2 is used for 8
          lanes, and what every CPU has for 4
    """
    signature = types.void(*[types.intp] * 13)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        dot = _dot(format_, tile, vnni=vnni)
        _Quantized(Emit(builder, tile.lanes), Operands(*args), format_, tile, dot).emit()
        return context.get_dummy_value()

    @intrinsic
    def micro(
        typingctx: Any,
        w: Any,
        s: Any,
        c: Any,
        g: Any,
        x: Any,
        ldx: Any,
        xs: Any,
        xsum: Any,
        lds: Any,
        out: Any,
        ldo: Any,
        ahead: Any,
        step: Any,
    ) -> Any:
        return signature, codegen

    return micro


class _Quantized:
    """Writes one micro-kernel."""

    def __init__(self, emit: Emit, ops: Operands, format_: Format, tile: Tile, dot: Dot) -> None:
        self.e = emit
        self.b = emit.b
        self.ops = ops
        self.format = format_
        self.tile = tile
        self.dot = dot

    def emit(self) -> None:
        """The loop over groups, then the stores."""
        b, ops, tile = self.b, self.ops, self.tile
        nibbles = self.format is not Format.Q8_0
        group_bytes = STEPS * STEP_BYTES // (2 if nibbles else 1)
        scale_bytes = COLUMNS * 2
        cells = [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
        entry = b.block
        loop = b.append_basic_block("groups")
        done = b.append_basic_block("groups.done")
        b.branch(loop)
        b.position_at_end(loop)
        group = b.phi(I64)
        weights, scales = b.phi(I64), b.phi(I64)
        sums = {cell: b.phi(self.e.floats) for cell in cells}
        totals = self._integers(weights, group, cells)
        new = self._floats(scales, group, totals, sums)
        following = b.add(group, ir.Constant(I64, 1))
        for phi, start, step in (
            (group, ir.Constant(I64, 0), following),
            (weights, ops.weights, self.e.at(weights, group_bytes)),
            (scales, ops.scales, self.e.at(scales, scale_bytes)),
        ):
            phi.add_incoming(start, entry)
            phi.add_incoming(step, b.block)
        for cell in cells:
            sums[cell].add_incoming(self.e.zero(), entry)
            sums[cell].add_incoming(new[cell], b.block)
        b.cbranch(b.icmp_signed("<", following, ops.groups), loop, done)
        b.position_at_end(done)
        if self.format is Format.Q4_1:
            new = self._constants(new)
        for row, vector in cells:
            address = b.add(ops.out, b.mul(ops.out_stride, ir.Constant(I64, row)))
            self.e.store(new[row, vector], self.e.at(address, 4 * tile.lanes * vector), 4)

    def _row(self, base: Any, stride: Any, row: int) -> Any:
        return self.b.add(base, self.b.mul(stride, ir.Constant(I64, row)))

    def _row_of_sums(self, row: int) -> Any:
        """A row of xsum, which is twice as long as one of xs."""
        return self._row(self.ops.xsum, self.b.shl(self.ops.xs_stride, ir.Constant(I64, 1)), row)

    def _integers(self, weights: Any, group: Any, cells: Any) -> Any:
        b, e, ops = self.b, self.e, self.ops
        nibbles = self.format is not Format.Q8_0
        shift = OFFSET_SHIFT[self.format]
        four_groups = b.mul(group, ir.Constant(I64, 4))
        totals, offsets = {}, []
        for row in range(self.tile.rows):
            at = b.add(self._row_of_sums(row), four_groups)
            offset = b.neg(b.shl(e.splat(e.load(at, I32, 4)), e.whole(shift)))
            offsets.append(offset)
            for vector in range(self.tile.vectors):
                totals[row, vector] = self.dot.start(e, offset)
        inputs = [
            b.add(self._row(ops.xq, ops.xq_stride, row), b.mul(group, ir.Constant(I64, GROUP)))
            for row in range(self.tile.rows)
        ]
        if self.tile.is_whole_panel:
            ahead = b.add(ops.ahead, b.mul(group, ops.ahead_stride))
            for line in range(0, BLOCK_BYTES[self.format] * COLUMNS, LINE):
                e.prefetch(e.at(ahead, line))
        for step in range(STEPS // 2 if nibbles else STEPS):
            packed = [
                e.load(e.at(weights, step * STEP_BYTES + 4 * e.lanes * v), e.ints, 4 * e.lanes)
                for v in range(self.tile.vectors)
            ]
            if not nibbles:
                self._dots(totals, packed, inputs, step)
                continue
            mask = e.whole(0x0F0F0F0F)
            self._dots(totals, [b.and_(p, mask) for p in packed], inputs, step)
            high = [b.and_(b.lshr(p, e.whole(4)), mask) for p in packed]
            self._dots(totals, high, inputs, step + STEPS // 2)
        return {cell: self.dot.finish(e, total, offsets[cell[0]]) for cell, total in totals.items()}

    def _dots(self, totals: Any, weights: Any, inputs: Any, step: int) -> None:
        e = self.e
        for row, base in enumerate(inputs):
            four = self.dot.operand(e, e.splat(e.load(e.at(base, STEP * step), I32, 4)))
            for vector, weight in enumerate(weights):
                totals[row, vector] = self.dot.step(e, totals[row, vector], weight, four)

    def _floats(self, scales: Any, group: Any, totals: Any, sums: Any) -> Any:
        b, e, ops = self.b, self.e, self.ops
        new = {}
        four_groups = b.mul(group, ir.Constant(I64, 4))
        for vector in range(self.tile.vectors):
            scale = e.halves(e.at(scales, 2 * e.lanes * vector))
            for row in range(self.tile.rows):
                xs = e.load(b.add(self._row(ops.xs, ops.xs_stride, row), four_groups), F32, 4)
                product = b.fmul(scale, e.splat(xs))
                whole = b.sitofp(totals[row, vector], e.floats)
                new[row, vector] = e.fma(whole, product, sums[row, vector])
        return new

    def _constants(self, start: Any) -> Any:
        """The loop over pairs of groups, which adds what Q4_1 adds to its weights."""
        b, e, ops = self.b, self.e, self.ops
        entry = b.block
        loop = b.append_basic_block("pairs")
        done = b.append_basic_block("pairs.done")
        rests = [b.add(self._row_of_sums(r), ops.xs_stride) for r in range(self.tile.rows)]
        b.branch(loop)
        b.position_at_end(loop)
        group, constants = b.phi(I64), b.phi(I64)
        sums = {cell: b.phi(e.floats) for cell in start}
        columns = [
            e.load(e.at(constants, 4 * e.lanes * v), e.ints, 4) for v in range(self.tile.vectors)
        ]
        pairs = [
            e.splat(e.load(b.add(r, b.shl(group, ir.Constant(I64, 1))), I32, 4)) for r in rests
        ]
        new = {(r, v): emit_dot(b, sums[r, v], columns[v], pairs[r]) for r, v in start}
        following = b.add(group, ir.Constant(I64, 2))
        group.add_incoming(ir.Constant(I64, 0), entry)
        group.add_incoming(following, loop)
        constants.add_incoming(ops.constants, entry)
        constants.add_incoming(e.at(constants, 4 * COLUMNS), loop)
        for cell, value in start.items():
            sums[cell].add_incoming(value, entry)
            sums[cell].add_incoming(new[cell], loop)
        b.cbranch(b.icmp_signed("<", following, ops.groups), loop, done)
        b.position_at_end(done)
        return new
