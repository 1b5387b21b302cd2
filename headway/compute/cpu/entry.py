"""The linear kernels behind one address, so that the compiled step does not depend on them.

The step is compiled once, and cached on disk, for every family of instructions; which one
serves is known at start. A function pointer costs nothing beside a matrix product. (A step
made in a function, around its kernels, would be compiled anew in every process: Numba's
cache does not know a closure again.)
"""

from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headway.compute.cpu import linear_avx2, linear_avx512, linear_avxvnni, linear_portable
from headway.compute.cpu.jit import OPTIONS
from headway.compute.cpu.settings import Isa

NUM_ARGUMENTS = 12  # of gemm; see linear.py
SIGNATURE = types.void(*[types.intp] * NUM_ARGUMENTS)


def _avx512(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo):  # type: ignore[no-untyped-def]
    linear_avx512.gemm(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


def _avxvnni(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo):  # type: ignore[no-untyped-def]
    linear_avxvnni.gemm(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


def _avx2(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo):  # type: ignore[no-untyped-def]
    linear_avx2.gemm(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


def _portable(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo):  # type: ignore[no-untyped-def]
    linear_portable.gemm(kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)


ENTRIES = {
    Isa.AVX512_VNNI: _avx512,
    Isa.AVX_VNNI: _avxvnni,
    Isa.AVX2: _avx2,
    Isa.PLAIN: _portable,
}


@cache
def _compiled(isa: Isa) -> Any:
    compile_entry = numba.cfunc(
        SIGNATURE, nopython=True, cache=OPTIONS["cache"], error_model="numpy"
    )
    return compile_entry(ENTRIES[isa])


def gemm_address(isa: Isa) -> int:
    """Address of `gemm` (linear.py) for a family of instructions; compiles it if needed."""
    return int(_compiled(isa).address)


@intrinsic
def call_gemm(  # type: ignore[no-untyped-def]
    typing_context, function, kind, w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo
):
    """Call the `gemm` at address `function`."""
    signature = types.void(*[types.intp] * (NUM_ARGUMENTS + 1))

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind_of = ir.FunctionType(ir.VoidType(), [word] * NUM_ARGUMENTS)
        builder.call(builder.inttoptr(args[0], kind_of.as_pointer()), list(args[1:]))
        return context.get_dummy_value()

    return signature, build
