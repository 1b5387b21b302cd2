"""Does each micro-kernel compute on this machine what it should? Asked at every start.

The kernels call instructions by LLVM's names, which another release of Numba's compiler may
understand otherwise. A family that is wrong, or cannot be compiled, is left for the next slower
one, with a log line. All numbers of the check are exact in float32, in any order of sums, so
that nothing but equality counts.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaError

from headway.compute.cpu.entry import gemm_function
from headway.compute.cpu.features import enabled, offers
from headway.compute.cpu.pack import BLOCK_BYTES, HEAD_BYTES, Format, PackedLinear, RawMatrix, pack
from headway.compute.cpu.pairs import from_bits, to_bits
from headway.compute.cpu.quantize import sums_and_rests
from headway.compute.cpu.quantize_weights import GROUP
from headway.compute.cpu.settings import Isa
from headway.compute.formats.blocks import expand
from headway.core.base.errors import StartError

log = logging.getLogger(__name__)

Gemm = Callable[..., None]
INPUTS = 2 * GROUP
OUTPUTS = 51  # two panels, one of them with padding
MOST_ROWS = 7  # every kernel takes rows by fours, twos and ones, some by threes
ROWS = (7, 2, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One format's product: what goes in, and what must come out."""

    weights: PackedLinear
    inputs: npt.NDArray[np.generic]  # [7, 64] int8, or float32 for float formats
    scales: npt.NDArray[np.float32]  # [7, 2]
    sums: npt.NDArray[np.int32]  # [7, 4]
    expected: npt.NDArray[np.float64]  # [7, 51]


def right_family(isa: Isa, gemm_of: Callable[[Isa], Gemm] = gemm_function) -> Isa:
    """The family itself, or the next slower one whose kernels are right.

    gemm_of  gives the compiled function of a family; replaced in tests
    Raises StartError when none is right.
    """
    for candidate in _no_faster_than(isa):
        problem = problem_of(candidate, gemm_of)
        if problem is None:
            return candidate
        log.error("cpu_kernels_wrong", extra={"isa": str(candidate), "reason": problem})
    raise StartError(
        "no CPU kernel computes what it should on this machine, the plainest included; the log "
        "lines say where; install the versions of numba and llvmlite that this release was "
        "tested with, or use --executor torch"
    )


def problem_of(isa: Isa, gemm_of: Callable[[Isa], Gemm]) -> str | None:
    """What is wrong with a family; None when it is right."""
    try:
        gemm = gemm_of(isa)
    except (NumbaError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"cannot be compiled: {lines[-1].strip()}"
    for name, case in cases().items():
        for rows in ROWS:
            if not np.array_equal(_product(gemm, case, rows), case.expected[:rows]):
                return f"{name}, {rows} rows: wrong numbers"
    return None


def _no_faster_than(isa: Isa) -> Iterator[Isa]:
    order = list(Isa)
    return (each for each in order[order.index(isa) :] if each is isa or offers(each, enabled()))


def _product(gemm: Gemm, case: Case, rows: int) -> npt.NDArray[np.float32]:
    packed = case.weights
    out = np.full((rows, packed.padded_outputs), np.nan, np.float32)
    gemm(
        int(packed.format),
        packed.address,
        INPUTS,
        0,
        packed.num_panels,
        case.inputs.ctypes.data,
        INPUTS,
        case.scales.ctypes.data,
        case.sums.ctypes.data,
        rows,
        out.ctypes.data,
        packed.padded_outputs,
    )
    return out[:, :OUTPUTS]


@cache
def cases() -> dict[str, Case]:
    """One of each format, the same at every start."""
    rng = np.random.default_rng(0)
    return {format_.name: _case(format_, rng) for format_ in Format}


def _case(format_: Format, rng: np.random.Generator) -> Case:
    matrix = RawMatrix(format_.name, _blocks(format_, rng))
    weights = expand(format_.name, matrix.rows).astype(np.float64)
    codes = rng.integers(-127, 128, size=(MOST_ROWS, INPUTS))
    codes[:, ::GROUP] = 127
    scales = np.exp2(rng.integers(-2, 1, size=(MOST_ROWS, INPUTS // GROUP))).astype(np.float32)
    values = codes * np.repeat(scales, GROUP, axis=1)
    is_quantized = format_.is_quantized
    inputs = codes.astype(np.int8) if is_quantized else values.astype(np.float32)
    totals = codes.reshape(MOST_ROWS, -1, GROUP).sum(axis=2).astype(np.int32)
    expected = values.astype(np.float64) @ weights.T
    if format_ is Format.Q4_1:
        rests = scales * totals
        error = (from_bits(to_bits(rests)) - rests).astype(np.float64)
        expected += error @ _constants(matrix).T
    (packed,) = pack([matrix])
    return Case(packed, inputs, scales, sums_and_rests(totals, scales), expected)


def _constants(matrix: RawMatrix) -> npt.NDArray[np.float64]:
    """Q4_1's m + 8 * d, [51, 2]; exact in bfloat16 here."""
    blocks = matrix.rows.reshape(OUTPUTS, -1, BLOCK_BYTES[Format.Q4_1])
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float64)
    constants: npt.NDArray[np.float64] = scales[..., 1] + 8 * scales[..., 0]
    return constants


def _blocks(format_: Format, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random codes of all values, with scales that are powers of two; small whole floats."""
    if not format_.is_quantized:
        floats = rng.integers(-64, 65, size=(OUTPUTS, INPUTS)).astype(np.float32)
        return _halved(floats) if format_ is Format.BF16 else floats.view(np.uint8)
    groups = OUTPUTS * INPUTS // GROUP
    head = HEAD_BYTES[format_]
    blocks = rng.integers(0, 256, size=(groups, BLOCK_BYTES[format_]), dtype=np.uint8)
    scales = np.exp2(rng.integers(-1, 2, size=(groups, head // 2))).astype(np.float16)
    scales[:, 1:] *= -1
    blocks[:, :head] = scales.view(np.uint8)
    return blocks.reshape(OUTPUTS, -1)


def _halved(floats: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """bfloat16, which holds these whole numbers."""
    high = (floats.view(np.uint32) >> 16).astype(np.uint16)
    return high.view(np.uint8)
