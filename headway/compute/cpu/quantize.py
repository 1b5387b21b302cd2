"""Activations to 8 bits, with one scale for each group of 32.

    scale = max |x| / 127      q = round(x * (127 / max |x|)), halves to even

A group whose largest value is under 1e-30 counts as zeros. Portable vector code: LLVM cuts
it to what the machine has, and every machine computes the same bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.micro_emit import F32, I8, I32, Emit
from headway.compute.cpu.pack import GROUP
from headway.compute.cpu.vector import ADDRESS, VECTOR, operation

LEAST = 1e-30
# Adding 1.5 * 2**23 leaves the rounded integer in a float32's low bits.
ROUND = 12582912.0


@intrinsic
def quantize_group(typingctx: Any, x: Any, xq: Any, xs: Any, xsum: Any) -> Any:
    """One group: addresses of 32 float32, and of the results: 32 int8, one f32, one i32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emit(builder, GROUP)
        _emit_group(e, e.load(args[0], e.floats, 4), *args[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), codegen


@operation(types.void, VECTOR, VECTOR, ADDRESS, ADDRESS, ADDRESS)
def quantize_pair(builder: Any, low: Any, high: Any, xq: Any, xs: Any, xsum: Any) -> None:
    """The same of a group that is in two vectors."""
    lanes = ir.Constant(ir.VectorType(I32, GROUP), list(range(GROUP)))
    _emit_group(Emit(builder, GROUP), builder.shuffle_vector(low, high, lanes), xq, xs, xsum)


def _emit_group(e: Emit, values: Any, xq: Any, xs: Any, xsum: Any) -> None:
    b = e.b
    largest = e.largest(values)
    is_zero = b.fcmp_ordered("<", largest, ir.Constant(F32, _float32(LEAST)))
    safe = b.select(is_zero, ir.Constant(F32, 1.0), largest)
    zero = ir.Constant(F32, 0.0)
    up = b.select(is_zero, zero, b.fdiv(ir.Constant(F32, 127.0), safe))
    scale = b.select(is_zero, zero, b.fdiv(safe, ir.Constant(F32, 127.0)))
    rounding = ir.Constant(e.floats, [ROUND] * GROUP)
    shifted = b.fadd(b.fmul(values, e.splat(up)), rounding)
    whole = b.sub(b.bitcast(shifted, e.ints), b.bitcast(rounding, e.ints))
    e.store(b.trunc(whole, ir.VectorType(I8, GROUP)), xq, 1)
    e.store(scale, xs, 4)
    e.store(e.reduce_add(whole), xsum, 4)


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
    xsum        address of int32 [rows, num_inputs / 32], written: sums of a group's xq
    """
    groups = num_inputs // GROUP
    for row in range(first_row, end_row):
        for group in range(groups):
            at = row * groups + group
            quantize_group(
                x + 4 * (row * ldx + GROUP * group), xq + GROUP * at, xs + 4 * at, xsum + 4 * at
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
    return xq.reshape(x.shape), xs, xq.sum(axis=2, dtype=np.int32)
