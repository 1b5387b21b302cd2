"""LLVM instructions under short names, at one vector width: what micro-kernels are made of."""

from typing import Any

from llvmlite import ir

I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
HALF = ir.HalfType()

# What llvm.prefetch is told: a read, into the second level, of data. Into the first level is
# slower by a third here: few lines can be under way to it.
PREFETCH = (0, 2, 1)


class Emit:
    """Short names for the instructions that the micro-kernels need, at one vector width."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.b = builder
        self.lanes = lanes
        self.ints = ir.VectorType(I32, lanes)
        self.floats = ir.VectorType(F32, lanes)

    def call(self, name: str, result: Any, args: list[Any]) -> Any:
        """An LLVM intrinsic by its full name."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return self.b.call(self.b.module.declare_intrinsic(name, (), kind), args)

    def at(self, address: Any, offset: int) -> Any:
        """Address plus a constant number of bytes."""
        return self.b.add(address, ir.Constant(I64, offset)) if offset else address

    def load(self, address: Any, kind: Any, align: int) -> Any:
        """One value of type `kind` from an address."""
        pointer = self.b.inttoptr(address, kind.as_pointer())
        return self.b.load(pointer, align=align, typ=kind)

    def store(self, value: Any, address: Any, align: int) -> None:
        """One value to an address."""
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=align)

    def splat(self, scalar: Any) -> Any:
        """The scalar in every lane."""
        vector = ir.VectorType(scalar.type, self.lanes)
        one = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)

    def whole(self, value: int) -> Any:
        """An integer constant in every lane."""
        return ir.Constant(self.ints, [value] * self.lanes)

    def zero(self) -> Any:
        """0.0 in every lane."""
        return self.whole_float(0.0)

    def halves(self, address: Any) -> Any:
        """Finite float16 numbers as float32, exactly."""
        b = self.b
        if self.lanes > 4:
            kind = ir.VectorType(HALF, self.lanes)
            return b.fpext(self.load(address, kind, 2 * self.lanes), self.floats)
        # Not every CPU converts, and LLVM's library call for it is not always there. Moved
        # into a float32's fields, the exponents are 112 too small; the product is exact.
        bits = b.zext(self.load(address, ir.VectorType(I16, self.lanes), 8), self.ints)
        fields = b.shl(b.and_(bits, self.whole(0x7FFF)), self.whole(13))
        scaled = b.fmul(b.bitcast(fields, self.floats), self.whole_float(2.0**112))
        sign = b.shl(b.and_(bits, self.whole(0x8000)), self.whole(16))
        return b.bitcast(b.or_(b.bitcast(scaled, self.ints), sign), self.floats)

    def whole_float(self, value: float) -> Any:
        """A float constant in every lane."""
        return ir.Constant(self.floats, [value] * self.lanes)

    def fma(self, left: Any, right: Any, plus: Any) -> Any:
        """left * right + plus, rounded once."""
        return self.call(f"llvm.fma.v{self.lanes}f32", self.floats, [left, right, plus])

    def largest(self, values: Any) -> Any:
        """The largest magnitude of the lanes: magnitudes compare as their bits do."""
        bits = self.b.and_(self.b.bitcast(values, self.ints), self.whole(0x7FFFFFFF))
        name = f"llvm.vector.reduce.umax.v{self.lanes}i32"
        return self.b.bitcast(self.call(name, I32, [bits]), F32)

    def reduce_add(self, values: Any) -> Any:
        """The sum of integer lanes."""
        return self.call(f"llvm.vector.reduce.add.v{self.lanes}i32", I32, [values])

    def prefetch(self, address: Any) -> None:
        """Ask for the cache line of an address, into the second level; never faults."""
        pointer = self.b.inttoptr(address, ir.PointerType(I8))
        flags = [ir.Constant(I32, flag) for flag in PREFETCH]
        self.call("llvm.prefetch", ir.VoidType(), [pointer, *flags])
