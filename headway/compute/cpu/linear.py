"""Linear layers: which kernel serves a format on this machine, and what it is called with.

Every kernel is compiled, holds no interpreter lock, allocates nothing and has one signature;
all arguments are integers:

    gemm_<format>(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    gemm(kind, <the same>)                   any format; kind = int(PackedLinear.format)

    w           address of the packed panels, 64-byte aligned (PackedLinear.address)
    inputs      K, PackedLinear.num_inputs
    first, end  panels to compute: columns 48 * first ... 48 * end - 1; 0 <= first <= end <=
                PackedLinear.num_panels. A split over threads gives disjoint ranges
    x           address of the activations: int8 [rows, ldx] from quantize_rows for a quantized
                format, else float32 [rows, ldx]
    ldx         values from one row of x to the next; inputs, for quantize_rows' results
    xs, xsum    addresses of float32 [rows, inputs / 32] and of twice as many 32-bit words, as
                quantize_rows writes them; 0 for float formats
    rows        M, >= 0
    out         address of float32 [rows, ldo]: columns 48 * first ... 48 * end - 1 of each row
                are overwritten, padding columns with zeros
    ldo         values from one row of out to the next, >= PackedLinear.padded_outputs

The bits of an output depend on its row of x and its column of weights only: not on `rows`,
on the range of panels or on the kernels chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu import (
    linear_avx2,
    linear_avx512,
    linear_avxvnni,
    linear_plain,
    linear_portable,
)
from headway.compute.cpu.pack import Format, PackedLinear
from headway.compute.cpu.quantize import quantize_rows
from headway.compute.cpu.settings import Isa

Gemm = Callable[..., None]


@dataclass(frozen=True)
class LinearKernels:
    """The compiled functions for one family of instructions."""

    of_format: Mapping[Format, Gemm]
    any_format: Gemm


def _kernels(module: Any) -> LinearKernels:
    return LinearKernels(
        {format_: getattr(module, f"gemm_{format_.name.lower()}") for format_ in Format},
        module.gemm,
    )


KERNELS: Mapping[Isa, LinearKernels] = {
    Isa.AVX512_VNNI: _kernels(linear_avx512),
    Isa.AVX_VNNI: _kernels(linear_avxvnni),
    Isa.AVX2: _kernels(linear_avx2),
    Isa.PLAIN: _kernels(linear_portable),
}
# Readable Numba without vector code: what the others are tested against. Slow.
READABLE = _kernels(linear_plain)


def kernels_for(isa: Isa) -> LinearKernels:
    """The kernels for what `detect` found; each is compiled at its first call."""
    return KERNELS[isa]


def apply(
    kernels: LinearKernels, packed: PackedLinear, x: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """One linear layer from Python, for tests and tools: [rows, inputs] to [rows, outputs]."""
    rows, inputs = x.shape
    x = np.ascontiguousarray(x)
    out = np.full((rows, packed.padded_outputs), np.nan, np.float32)
    xq = np.empty((rows, inputs), np.int8)
    xs = np.empty((rows, -(-inputs // 32)), np.float32)
    xsum = np.empty((rows, 2 * xs.shape[1]), np.int32)
    address = x.ctypes.data
    if packed.format.is_quantized:
        quantize_rows(
            address, inputs, 0, rows, inputs, xq.ctypes.data, xs.ctypes.data, xsum.ctypes.data
        )
        address = xq.ctypes.data
    kernels.of_format[packed.format](
        packed.address,
        inputs,
        0,
        packed.num_panels,
        address,
        inputs,
        xs.ctypes.data,
        xsum.ctypes.data,
        rows,
        out.ctypes.data,
        packed.padded_outputs,
    )
    return out[:, : packed.num_outputs]
