"""Sixteen float32 lanes as one value inside kernels.

The operations are generic LLVM vector code: AVX-512 does each in one instruction, AVX2 in
two, others in as many as they need, all with the same bits. Nothing is reassociated and
every multiply-add that is fused says so, so a sum never depends on who computes it.
Addresses are byte addresses (intp); no alignment is needed.
"""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

FLOAT = ir.FloatType()
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)
INT8_POINTER = ir.IntType(8).as_pointer()
FLOATS = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT32, LANES)
SHORTS = ir.VectorType(INT16, LANES)
BITS = ir.VectorType(ir.IntType(1), LANES)


class LanesType(types.Type):  # type: ignore[misc]  # numba has no types of its own
    """Numba's type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Float32x16")


@register_model(LanesType)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """Such a value is one LLVM vector."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, FLOATS)


VECTOR = LanesType()
ADDRESS = types.intp

Emit = Callable[..., Any]


def operation(result: Any, *arguments: Any) -> Callable[[Emit], Any]:
    """Make a function for kernels out of one that writes LLVM IR.

    The decorated function takes the IR builder and the arguments' IR values, and returns
    the result's IR value (None for void).
    """
    signature = result(*arguments)

    def decorate(emit: Emit) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        def typed(_context: Any, *_arguments: Any) -> Any:
            return signature, generate

        # Numba matches the arguments of a call against the signature.
        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        typed.__name__ = emit.__name__
        typed.__doc__ = emit.__doc__
        return intrinsic(typed)

    return decorate


def constant(value: float) -> Any:
    """The number in all lanes, as an IR constant."""
    return ir.Constant(FLOATS, [value] * LANES)


def int_constant(value: int) -> Any:
    """The 32-bit integer in all lanes, as an IR constant."""
    return ir.Constant(INTS, [value] * LANES)


def emit_load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """Read a value of an IR type."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def emit_store(builder: Any, address: Any, value: Any, align: int) -> None:
    """Write a value."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def emit_splat(builder: Any, value: Any, kind: Any = FLOATS) -> Any:
    """The same scalar in every lane."""
    empty = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(empty, value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, empty, int_constant(0))


def emit_fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    function = builder.module.declare_intrinsic(f"llvm.fma.v{LANES}f32", (), kind)
    return builder.call(function, [a, b, c])


def emit_widen(builder: Any, bits: Any) -> Any:
    """bfloat16 bits to float32: the upper half of the number."""
    wide = builder.shl(builder.zext(bits, INTS), int_constant(16))
    return builder.bitcast(wide, FLOATS)


def emit_mask(builder: Any, count: Any) -> Any:
    """True in the first `count` lanes."""
    lanes = ir.Constant(INTS, list(range(LANES)))
    limit = emit_splat(builder, builder.trunc(count, INT32), INTS)
    return builder.icmp_signed("<", lanes, limit)


@operation(VECTOR, types.float32)
def splat(builder: Any, value: Any) -> Any:
    """The same number in every lane."""
    return emit_splat(builder, value)


@operation(VECTOR, ADDRESS)
def load(builder: Any, address: Any) -> Any:
    """Sixteen float32 from memory."""
    return emit_load(builder, address, FLOATS, 4)


@operation(types.void, ADDRESS, VECTOR)
def store(builder: Any, address: Any, value: Any) -> None:
    """Sixteen float32 to memory."""
    emit_store(builder, address, value, 4)


@operation(VECTOR, ADDRESS, types.intp)
def load_first(builder: Any, address: Any, count: Any) -> Any:
    """The first `count` (0 .. 16) from memory, zero in the other lanes; reads no more."""
    kind = ir.FunctionType(FLOATS, [FLOATS.as_pointer(), INT32, BITS, FLOATS])
    function = builder.module.declare_intrinsic(f"llvm.masked.load.v{LANES}f32.p0", (), kind)
    pointer = builder.inttoptr(address, FLOATS.as_pointer())
    mask = emit_mask(builder, count)
    return builder.call(function, [pointer, ir.Constant(INT32, 4), mask, constant(0.0)])


@operation(types.void, ADDRESS, VECTOR, types.intp)
def store_first(builder: Any, address: Any, value: Any, count: Any) -> None:
    """The first `count` lanes (0 .. 16) to memory; writes no more."""
    kind = ir.FunctionType(ir.VoidType(), [FLOATS, FLOATS.as_pointer(), INT32, BITS])
    function = builder.module.declare_intrinsic(f"llvm.masked.store.v{LANES}f32.p0", (), kind)
    pointer = builder.inttoptr(address, FLOATS.as_pointer())
    builder.call(function, [value, pointer, ir.Constant(INT32, 4), emit_mask(builder, count)])


@operation(VECTOR, VECTOR, types.intp, types.float32)
def keep_first(builder: Any, value: Any, count: Any, other: Any) -> Any:
    """The first `count` lanes (any count), `other` in the rest, whatever was there."""
    return builder.select(emit_mask(builder, count), value, emit_splat(builder, other))


@operation(VECTOR, VECTOR, types.intp, types.float32)
def drop_first(builder: Any, value: Any, count: Any, other: Any) -> Any:
    """`other` in the first `count` lanes (any count), whatever was there, the rest as it is."""
    return builder.select(emit_mask(builder, count), emit_splat(builder, other), value)


@operation(VECTOR, VECTOR, VECTOR)
def add(builder: Any, a: Any, b: Any) -> Any:
    """a + b."""
    return builder.fadd(a, b)


@operation(VECTOR, VECTOR, VECTOR)
def subtract(builder: Any, a: Any, b: Any) -> Any:
    """a - b."""
    return builder.fsub(a, b)


@operation(VECTOR, VECTOR, VECTOR)
def multiply(builder: Any, a: Any, b: Any) -> Any:
    """a * b."""
    return builder.fmul(a, b)


@operation(VECTOR, VECTOR, VECTOR)
def divide(builder: Any, a: Any, b: Any) -> Any:
    """a / b, correctly rounded."""
    return builder.fdiv(a, b)


@operation(VECTOR, VECTOR, VECTOR, VECTOR)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return emit_fma(builder, a, b, c)


@operation(VECTOR, VECTOR, VECTOR)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@operation(VECTOR, VECTOR)
def minus_magnitude(builder: Any, x: Any) -> Any:
    """-|x|."""
    bits = builder.or_(builder.bitcast(x, INTS), int_constant(0x80000000))
    return builder.bitcast(bits, FLOATS)


@operation(VECTOR, VECTOR, VECTOR, VECTOR)
def where_negative(builder: Any, x: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes where x < 0, `no` in the others."""
    return builder.select(builder.fcmp_ordered("<", x, constant(0.0)), yes, no)


@operation(VECTOR, VECTOR)
def exp(builder: Any, x: Any) -> Any:
    """e**x within 1.1 units in the last place; 0 below -87.33, and as at 88 above 88.

    x = n ln 2 + r with |r| <= ln 2 / 2; e**r = 1 + r + r^2 p(r), where p is the polynomial
    of degree 4 with the least worst relative error (3e-9), fitted by weighted least squares.
    NaN gives NaN.
    """
    magic = constant(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer
    x = builder.select(builder.fcmp_ordered(">", x, constant(88.0)), constant(88.0), x)
    shifted = emit_fma(builder, x, constant(1.4426950216293335), magic)
    n = builder.fsub(shifted, magic)
    r = emit_fma(builder, n, constant(-0.6931471824645996), x)
    r = emit_fma(builder, n, constant(1.9046542121259336e-09), r)
    p = constant(0.001381453825160861)
    for coefficient in (
        0.00836874544620514,
        0.04166838899254799,
        0.1666652113199234,
        0.4999999403953552,
    ):
        p = emit_fma(builder, p, r, constant(coefficient))
    series = emit_fma(builder, p, builder.fmul(r, r), r)
    power = builder.shl(
        builder.add(builder.bitcast(shifted, INTS), int_constant(127)), int_constant(23)
    )
    value = builder.fadd(series, constant(1.0))
    value = builder.fmul(value, builder.bitcast(power, FLOATS))
    return builder.select(builder.fcmp_ordered("<", x, constant(-87.33)), constant(0.0), value)


def _emit_tree(builder: Any, value: Any, combine: Emit) -> Any:
    """Fold the upper half onto the lower until one lane is left: one fixed order."""
    width = LANES // 2
    while width:
        order = [lane + width if lane < width else lane for lane in range(LANES)]
        upper = builder.shuffle_vector(value, value, ir.Constant(INTS, order))
        value = combine(value, upper)
        width //= 2
    return builder.extract_element(value, ir.Constant(INT32, 0))


@operation(types.float32, VECTOR)
def first_lane(builder: Any, value: Any) -> Any:
    """The number in lane 0."""
    return builder.extract_element(value, ir.Constant(INT32, 0))


@operation(types.float32, VECTOR)
def sum_lanes(builder: Any, value: Any) -> Any:
    """The sum of the lanes in one fixed order."""
    return _emit_tree(builder, value, builder.fadd)


@operation(types.float32, VECTOR)
def max_lanes(builder: Any, value: Any) -> Any:
    """The largest lane; NaN lanes may be passed over."""

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    return _emit_tree(builder, value, larger)


@operation(types.float32, ADDRESS)
def read(builder: Any, address: Any) -> Any:
    """One float32 from memory."""
    return emit_load(builder, address, FLOAT, 4)


@operation(types.void, ADDRESS, types.float32)
def write(builder: Any, address: Any, value: Any) -> None:
    """One float32 to memory."""
    emit_store(builder, address, value, 4)


@operation(types.intp, ADDRESS)
def read_address(builder: Any, address: Any) -> Any:
    """One address from memory."""
    return emit_load(builder, address, INT64, 8)


@operation(types.void, ADDRESS, types.intp)
def write_address(builder: Any, address: Any, value: Any) -> None:
    """One address to memory."""
    emit_store(builder, address, value, 8)


@operation(types.void, ADDRESS, types.intp)
def write_byte(builder: Any, address: Any, value: Any) -> None:
    """The lowest byte of an integer to memory."""
    emit_store(builder, address, builder.trunc(value, ir.IntType(8)), 1)


@operation(types.uint16, types.float32)
def to_bfloat16(builder: Any, value: Any) -> Any:
    """bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, INT32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(INT32, 16)), ir.Constant(INT32, 1))
    rounded = builder.add(builder.add(bits, odd), ir.Constant(INT32, 0x7FFF))
    quiet = builder.or_(bits, ir.Constant(INT32, 0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, ir.Constant(INT32, 16)), INT16)


@intrinsic
def address_of(_context: Any, array: Any) -> Any:
    """Byte address of an array's first element."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.ptrtoint(data, cgutils.intp_t)

    return ADDRESS(array), generate
