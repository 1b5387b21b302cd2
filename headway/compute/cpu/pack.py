"""Weights of linear layers as the kernels read them: panels of 48 output columns.

A panel is one contiguous run of bytes, padded to 64; the panels follow each other. With
G = inputs / 32 groups, `step` the four inputs of one dot product (inputs 4 * step ... + 3 of
the group), and shapes written as [slowest, ..., fastest]:

format   values                              then scales, raw float16 bits
Q8_0     u8  [G, 8 steps, 48 columns, 4]     [G, 48] d            value: d * (u8 - 128)
Q4_0     u8  [G, 4 steps, 48 columns, 4]     [G, 48] d            value: d * (nibble - 8)
Q4_1     u8  [G, 4 steps, 48 columns, 4]     [G, 48] d, then      value: d * (nibble - 8) + c
                                             bfloat16 bits
                                             [ceil(G / 2), 48, 2] c
BF16     u16 [inputs, 48 columns]            none
F32      f32 [inputs, 48 columns]            none

Of 4-bit values the low nibbles of step s are its inputs and the high nibbles those of step
s + 4, as in GGUF's blocks. GGUF's numbers are kept (F16 becomes F32), but for Q4_1's least value
m: c is m + 8 * d, rounded to bfloat16. That is at most 1/256 of c, which is small where the
values of a group lie around zero. An odd last group has zeros for a partner.
Columns past the last output are zero weights. Weights of other types become one of these on
the way, a piece at a time (repack.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.pairs import from_bits, to_bits
from headway.compute.cpu.quantize_weights import GROUP as GROUP
from headway.compute.cpu.repack import repack, row_bytes
from headway.compute.formats.blocks import BLOCK_SHAPE, expand

COLUMNS = 48
LINE = 64

Bytes = npt.NDArray[np.uint8]
Allocate = Callable[[int], Bytes]
# Rows of raw blocks that are rearranged at once: bounds the temporary copies.
CHUNK_PANELS = 64
CHUNK_VALUES = 1 << 21  # the same for float32 numbers that are to be quantized


class Format(IntEnum):
    """How a packed matrix holds its weights; an int, so that compiled code can switch on it."""

    Q8_0 = 0
    Q4_0 = 1
    Q4_1 = 2
    BF16 = 3
    F32 = 4

    @property
    def is_quantized(self) -> bool:
        """Whether its kernel takes quantized activations (else float32 ones)."""
        return self in BLOCK_BYTES


# GGUF's bytes for 32 values, and how many of them come before the values.
BLOCK_BYTES = {Format.Q8_0: 34, Format.Q4_0: 18, Format.Q4_1: 20}
HEAD_BYTES = {Format.Q8_0: 2, Format.Q4_0: 2, Format.Q4_1: 4}
VALUE_BYTES = {Format.BF16: 2, Format.F32: 4}
FORMAT_OF = {
    "Q8_0": Format.Q8_0,
    "Q4_0": Format.Q4_0,
    "Q4_1": Format.Q4_1,
    "BF16": Format.BF16,
    "F32": Format.F32,
    "F16": Format.F32,
}


@dataclass(frozen=True)
class RawMatrix:
    """A matrix as a GGUF file holds it."""

    type_name: str
    """GGUF's name of the type, a key of BLOCK_SHAPE."""
    rows: Bytes
    """[outputs, bytes of a row] uint8."""
    packed_as: str = ""
    """The type that its numbers are to get, a key of FORMAT_OF; empty: its own."""

    @property
    def packed_name(self) -> str:
        """GGUF's name of the type as packed."""
        return self.packed_as or self.type_name

    @property
    def packed_row_bytes(self) -> int:
        """Bytes of a row of that type."""
        return row_bytes(self.num_inputs, self.packed_name)

    def packed_rows(self, first: int, end: int) -> Bytes:
        """Rows [first, end) in that type."""
        return repack(self.rows[first:end], self.type_name, self.packed_name)

    @property
    def num_inputs(self) -> int:
        """Values of a row."""
        values, num_bytes = BLOCK_SHAPE[self.type_name]
        return int(self.rows.shape[1]) // num_bytes * values


@dataclass(frozen=True)
class PackedLinear:
    """One or more matrices of the same type and inputs, their outputs side by side."""

    format: Format
    num_inputs: int
    num_outputs: int
    data: Bytes
    """All panels; begins at a multiple of 64 bytes."""

    @property
    def num_panels(self) -> int:
        """Panels of 48 columns."""
        return num_panels(self.num_outputs)

    @property
    def padded_outputs(self) -> int:
        """Columns that the kernel writes: num_outputs up to a multiple of 48."""
        return self.num_panels * COLUMNS

    @property
    def address(self) -> int:
        """Where the first panel begins; valid while `data` lives."""
        return int(self.data.ctypes.data)


def num_panels(num_outputs: int) -> int:
    """Panels for so many outputs."""
    return -(-num_outputs // COLUMNS)


def panel_bytes(format_: Format, num_inputs: int) -> int:
    """Distance from one panel to the next."""
    if not format_.is_quantized:
        size = num_inputs * COLUMNS * VALUE_BYTES[format_]
    else:
        groups = num_inputs // GROUP
        # A last group without a partner leaves half of its pair of constants unused.
        odd = 2 * (groups % 2) if format_ is Format.Q4_1 else 0
        size = (groups * BLOCK_BYTES[format_] + odd) * COLUMNS
    return -(-size // LINE) * LINE


def aligned(num_bytes: int) -> Bytes:
    """New memory that begins at a multiple of 64; its contents are arbitrary."""
    memory = np.empty(num_bytes + LINE, np.uint8)
    start = -int(memory.ctypes.data) % LINE
    return memory[start : start + num_bytes]


class Arena:
    """One piece of memory for many packed matrices, so that it can lie in large pages."""

    def __init__(self, num_bytes: int) -> None:
        """Room for `num_bytes`: the sum of packed_bytes over all that is to be packed."""
        self._free = aligned(num_bytes)

    def __call__(self, num_bytes: int) -> Bytes:
        """The next piece; an `allocate` of `pack`. ValueError when it does not fit."""
        if num_bytes > self._free.size:
            raise ValueError(
                f"{num_bytes} bytes do not fit into the arena's last {self._free.size}; "
                "make it larger"
            )
        taken, self._free = self._free[:num_bytes], self._free[num_bytes:]
        return taken


def joined(matrices: Sequence[RawMatrix]) -> list[list[RawMatrix]]:
    """Neighbours of one type, which become one PackedLinear each."""
    return [list(run) for _, run in groupby(matrices, key=lambda m: m.packed_name)]


def packed_bytes(matrices: Sequence[RawMatrix]) -> int:
    """What `pack` will allocate for them."""
    return sum(
        num_panels(sum(len(m.rows) for m in run))
        * panel_bytes(FORMAT_OF[run[0].packed_name], run[0].num_inputs)
        for run in joined(matrices)
    )


def pack(matrices: Sequence[RawMatrix], allocate: Allocate = aligned) -> tuple[PackedLinear, ...]:
    """Matrices that share their input, e.g. (query, key, value), as few packed ones.

    Neighbours that are packed as one type become one PackedLinear, their outputs following
    each other without a gap; where the type changes a new PackedLinear begins. So the result
    has one item in the usual case, and its items' num_outputs say which columns they hold.

    allocate  gives memory for a number of bytes, beginning at a multiple of 64
    Raises ValueError for different numbers of inputs, for a row that is not whole blocks,
    for an unknown type and for a scale that is not finite.
    """
    for matrix in matrices:
        _check(matrix)
    if len(inputs := sorted({matrix.num_inputs for matrix in matrices})) > 1:
        raise ValueError(f"matrices of {inputs} inputs cannot share one input")
    return tuple(_pack_run(run, allocate) for run in joined(matrices))


def unpacked(packed: PackedLinear, outputs: npt.NDArray[np.int64]) -> RawMatrix:
    """Rows of a packed matrix again, bit for bit; F16 and Q4_1 come back as F32.

    outputs  [R] which rows
    """
    size = panel_bytes(packed.format, packed.num_inputs)
    panels = packed.data.reshape(packed.num_panels, size)
    panel, column = np.divmod(outputs, COLUMNS)
    if not packed.format.is_quantized:
        end = packed.num_inputs * COLUMNS * VALUE_BYTES[packed.format]
        kind = np.uint16 if packed.format is Format.BF16 else np.float32
        values = panels[:, :end].view(kind).reshape(len(panels), packed.num_inputs, COLUMNS)
        return RawMatrix(packed.format.name, _as_bytes(values[panel, :, column]))
    groups = packed.num_inputs // GROUP
    code_bytes = BLOCK_BYTES[packed.format] - HEAD_BYTES[packed.format]
    end = groups * code_bytes * COLUMNS
    fours = panels[:, :end].view(np.uint32).reshape(len(panels), groups, -1, COLUMNS)
    scales = panels[:, end : end + groups * 2 * COLUMNS].view(np.uint16)
    scales = scales.reshape(len(panels), groups, COLUMNS)
    blocks = np.empty((len(outputs), groups, 2 + code_bytes), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scales[panel, :, column, None]).view(np.uint8)
    values_of = np.ascontiguousarray(fours[panel, :, :, column])
    if packed.format is Format.Q8_0:
        values_of ^= np.uint32(0x80808080)
    blocks[..., 2:] = values_of.view(np.uint8)
    rows = blocks.reshape(len(outputs), -1)
    if packed.format is not Format.Q4_1:
        return RawMatrix(packed.format.name, rows)
    # Without c, the numbers are those of Q4_0.
    end += groups * 2 * COLUMNS
    pairs = (groups + 1) // 2
    constants = panels[:, end : end + pairs * 4 * COLUMNS].view(np.uint16)
    constants = constants.reshape(len(panels), pairs, COLUMNS, 2)[panel, :, column]
    added = from_bits(constants.reshape(len(outputs), -1)[:, :groups])
    values = expand("Q4_0", rows).reshape(len(outputs), groups, GROUP)
    return RawMatrix("F32", _as_bytes(values + added[..., None]))


def _check(matrix: RawMatrix) -> None:
    if matrix.type_name not in BLOCK_SHAPE or matrix.packed_name not in FORMAT_OF:
        raise ValueError(
            f"weights of type {matrix.type_name} cannot be packed as {matrix.packed_name}; "
            f"use {', '.join(FORMAT_OF)}"
        )
    width = BLOCK_SHAPE[matrix.type_name][1]
    if matrix.rows.shape[1] == 0 or matrix.rows.shape[1] % width:
        raise ValueError(
            f"a row of {matrix.rows.shape[1]} bytes is not whole {matrix.type_name} blocks of "
            f"{width}; give the raw blocks as [outputs, bytes of a row]"
        )
    if FORMAT_OF[matrix.packed_name].is_quantized and matrix.num_inputs % GROUP:
        raise ValueError(
            f"a row of {matrix.num_inputs} values is not whole groups of {GROUP}; "
            "leave its weights as they are"
        )


def _pack_run(run: Sequence[RawMatrix], allocate: Allocate) -> PackedLinear:
    format_ = FORMAT_OF[run[0].packed_name]
    num_outputs = sum(len(matrix.rows) for matrix in run)
    num_inputs = run[0].num_inputs
    size = panel_bytes(format_, num_inputs)
    panels = num_panels(num_outputs)
    data = allocate(panels * size)
    chunks = data.reshape(panels, size)
    is_as_stored = all(matrix.packed_name == matrix.type_name for matrix in run)
    step = CHUNK_PANELS if is_as_stored else max(1, CHUNK_VALUES // (COLUMNS * num_inputs))
    for first in range(0, panels, step):
        chunk = chunks[first : first + step]
        rows = _rows(run, first * COLUMNS, len(chunk) * COLUMNS)
        if format_.is_quantized:
            _fill_blocks(format_, rows, num_inputs // GROUP, chunk)
        else:
            _fill_values(format_, run[0].packed_name, rows, num_inputs, chunk)
    return PackedLinear(format_, num_inputs, num_outputs, data)


def _rows(run: Sequence[RawMatrix], first: int, count: int) -> Bytes:
    """Rows [first, first + count) of the matrices one below the other; zeros past the end."""
    rows = np.zeros((count, run[0].packed_row_bytes), np.uint8)
    start = 0
    for matrix in run:
        begin, end = max(first, start), min(first + count, start + len(matrix.rows))
        if begin < end:
            rows[begin - first : end - first] = matrix.packed_rows(begin - start, end - start)
        start += len(matrix.rows)
    return rows


def _fill_blocks(format_: Format, rows: Bytes, groups: int, chunk: Bytes) -> None:
    """Raw blocks into panels.

    rows   [P * 48, bytes of a row]
    chunk  [P, panel_bytes] out
    """
    panels = len(chunk)
    head = HEAD_BYTES[format_]
    blocks = rows.reshape(panels, COLUMNS, groups, BLOCK_BYTES[format_])
    fours = np.ascontiguousarray(blocks[..., head:]).view(np.uint32)
    scales = np.ascontiguousarray(blocks[..., :head]).view(np.uint16)
    if not np.isfinite(scales.view(np.float16)).all():
        raise ValueError(
            "a scale of the weights is not finite; the file is damaged: fetch it again"
        )
    if format_ is Format.Q8_0:
        fours ^= np.uint32(0x80808080)
    parts = [_as_bytes(fours.transpose(0, 2, 3, 1)), _as_bytes(scales[..., 0].transpose(0, 2, 1))]
    if format_ is Format.Q4_1:
        constants = _paired_constants(scales.view(np.float16).astype(np.float32))
        parts.append(_as_bytes(constants))
    start = 0
    for part in parts:
        chunk[:, start : start + part.shape[1]] = part
        start += part.shape[1]
    chunk[:, start:] = 0


def _paired_constants(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Q4_1's c of each group: from d and m [P, 48, G, 2], [P, ceil(G / 2), 48, 2]."""
    panels, _, groups, _ = scales.shape
    constants = np.zeros((panels, COLUMNS, groups + groups % 2), np.uint16)
    constants[..., :groups] = to_bits(scales[..., 1] + np.float32(8) * scales[..., 0])
    return constants.reshape(panels, COLUMNS, -1, 2).transpose(0, 2, 1, 3)


def _fill_values(
    format_: Format, type_name: str, rows: Bytes, num_inputs: int, chunk: Bytes
) -> None:
    """As _fill_blocks, for plain numbers."""
    kind = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[type_name]
    values = rows.view(kind).reshape(len(chunk), COLUMNS, num_inputs).transpose(0, 2, 1)
    if type_name == "F16":
        values = values.astype(np.float32)
    end = num_inputs * COLUMNS * VALUE_BYTES[format_]
    chunk[:, :end] = _as_bytes(values)
    chunk[:, end:] = 0


def _as_bytes(values: npt.NDArray[np.generic]) -> Bytes:
    """[P, ...] as [P, bytes]."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
