"""Micro-kernels for weights kept as floats (BF16, F32), written as LLVM IR.

For each input k in ascending order, and for each output: acc = fma(weight, x[k], acc), all in
float32. As in micro.py, every variant does this in this order.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headway.compute.cpu.micro import Tile
from headway.compute.cpu.micro_emit import F32, I16, I64, Emit
from headway.compute.cpu.pack import COLUMNS, VALUE_BYTES, Format


def floating(format_: Format, tile: Tile) -> Any:
    """An intrinsic: (weights, inputs, x, x_stride, out, out_stride), all intp; addresses and
    strides in bytes. x and out are float32."""
    signature = types.void(*[types.intp] * 6)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _emit(Emit(builder, tile.lanes), format_, tile, args)
        return context.get_dummy_value()

    @intrinsic
    def micro(
        typingctx: Any, weights: Any, inputs: Any, x: Any, x_stride: Any, out: Any, out_stride: Any
    ) -> Any:
        return signature, codegen

    return micro


def _weight(e: Emit, format_: Format, address: Any) -> Any:
    if format_ is Format.F32:
        return e.load(address, e.floats, 16)
    bits = e.load(address, ir.VectorType(I16, e.lanes), 2 * e.lanes)
    return e.b.bitcast(e.b.shl(e.b.zext(bits, e.ints), e.whole(16)), e.floats)


def _emit(e: Emit, format_: Format, tile: Tile, args: Any) -> None:
    b = e.b
    weights, inputs, x, x_stride, out, out_stride = args
    cells = [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
    width = VALUE_BYTES[format_]
    entry = b.block
    loop = b.append_basic_block("inputs")
    done = b.append_basic_block("inputs.done")
    b.branch(loop)
    b.position_at_end(loop)
    k, at = b.phi(I64), b.phi(I64)
    sums = {cell: b.phi(e.floats) for cell in cells}
    columns = [_weight(e, format_, e.at(at, width * e.lanes * v)) for v in range(tile.vectors)]
    new = {}
    for row in range(tile.rows):
        base = b.add(x, b.mul(x_stride, ir.Constant(I64, row)))
        value = e.splat(e.load(b.add(base, b.mul(k, ir.Constant(I64, 4))), F32, 4))
        for v, weight in enumerate(columns):
            new[row, v] = e.fma(weight, value, sums[row, v])
    following = b.add(k, ir.Constant(I64, 1))
    k.add_incoming(ir.Constant(I64, 0), entry)
    k.add_incoming(following, loop)
    at.add_incoming(weights, entry)
    at.add_incoming(e.at(at, width * COLUMNS), loop)
    for cell in cells:
        sums[cell].add_incoming(e.zero(), entry)
        sums[cell].add_incoming(new[cell], loop)
    b.cbranch(b.icmp_signed("<", following, inputs), loop, done)
    b.position_at_end(done)
    for row, v in cells:
        address = b.add(out, b.mul(out_stride, ir.Constant(I64, row)))
        e.store(new[row, v], e.at(address, 4 * e.lanes * v), 4)
