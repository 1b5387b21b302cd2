"""What a team of threads needs inside compiled code: atomic counters, a way to wait, a clock."""

import platform
import sys
import time
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)
# Linux' futex: the number of the call where it is known, and its two operations.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 128, 129
_HAS_PAUSE = llvm.get_process_triple().startswith(("x86_64", "i686"))


@intrinsic
def atomic_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address; returns what was there before."""
    signature = types.int64(types.intp, types.int64)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], ordering="seq_cst")

    return signature, build


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """The int64 at an address, and everything written before it was."""
    signature = types.int64(types.intp)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return signature, build


@intrinsic
def atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    """Write the int64 at an address; nothing is said about other memory."""
    signature = types.void(types.intp, types.int64)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, ordering="monotonic", align=8)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def pause(typing_context: Any) -> Any:
    """A moment in a waiting loop that leaves the core's other work alone."""
    signature = types.void()

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _HAS_PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause")
            builder.call(hint, [])
        return context.get_dummy_value()

    return signature, build


def _system_call(builder: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(_I64, [_I64], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    builder.call(
        function, [a if isinstance(a, ir.Value) else ir.Constant(_I64, a) for a in arguments]
    )


@intrinsic
def park(typing_context: Any, address: Any, seen: Any) -> Any:
    """Sleep until `unpark`, unless the int64 at an address is not `seen` any more.

    It may also return for no reason. Where Linux' futex is not known, it only gives way.
    """
    signature = types.void(types.intp, types.int64)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _FUTEX is None:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        else:
            # It compares 32 bits, on little-endian machines the lower half.
            _system_call(builder, _FUTEX, args[0], _WAIT, args[1], 0, 0, 0)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def unpark(typing_context: Any, address: Any) -> Any:
    """Wake every thread that is parked at an address."""
    signature = types.void(types.intp)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _FUTEX is not None:
            _system_call(builder, _FUTEX, args[0], _WAKE, 2**31 - 1, 0, 0, 0)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def nanoseconds(typing_context: Any) -> Any:
    """The clock that `time.monotonic_ns` reads."""
    signature = types.int64()

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pair = ir.LiteralStructType([_I64, _I64])
        place = cgutils.alloca_once(builder, pair)
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), pair.as_pointer()])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC), place])
        now = builder.load(place)
        whole = builder.mul(builder.extract_value(now, 0), ir.Constant(_I64, 10**9))
        return builder.add(whole, builder.extract_value(now, 1))

    return signature, build
