"""Linear layers for CPUs with AVX-512 and its 8-bit dot product; see linear.py.

Rows go in fours, columns in 48: with the weights and one activation that fills the 32
registers. A panel is read from memory once; the next fours of rows find it in the cache.
"""

from typing import Any

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.micro import Tile, quantized
from headway.compute.cpu.micro_float import floating
from headway.compute.cpu.pack import COLUMNS, GROUP, LINE, Format

Q8_0, Q4_0, Q4_1 = int(Format.Q8_0), int(Format.Q4_0), int(Format.Q4_1)
BF16 = int(Format.BF16)
BLOCK = 4  # rows of the largest micro-kernel
# Bytes to prefetch ahead while a panel is read once. Best of 0 ... 4096 on a Zen 4 (two
# threads: 31 GB/s, 24 without).
AHEAD = 2048

_q8_0_1, _q8_0_2, _q8_0_3, _q8_0_4 = (quantized(Format.Q8_0, Tile(r)) for r in (1, 2, 3, 4))
_q4_0_1, _q4_0_2, _q4_0_3, _q4_0_4 = (quantized(Format.Q4_0, Tile(r)) for r in (1, 2, 3, 4))
_q4_1_1, _q4_1_2, _q4_1_3, _q4_1_4 = (quantized(Format.Q4_1, Tile(r)) for r in (1, 2, 3, 4))
_bf16_1, _bf16_2, _bf16_4 = (floating(Format.BF16, Tile(r)) for r in (1, 2, 4))
_f32_1, _f32_2, _f32_4 = (floating(Format.F32, Tile(r)) for r in (1, 2, 4))


@kernel
def _ahead(at: int, size: int, groups: int, row: int, rows: int) -> Any:
    """What to prefetch while a block of rows is multiplied: (address, bytes a group).

    A panel that is read once runs ahead of itself. Else each block of rows fetches its part
    of the next panel, so that memory and arithmetic work at the same time.
    """
    blocks = (rows + BLOCK - 1) // BLOCK
    if blocks == 1:
        return at + AHEAD, size // groups
    part = size // blocks
    return at + size + row // BLOCK * part, part // groups


@kernel
def gemm_q8_0(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    groups = inputs // GROUP
    lds, ldb = 4 * groups, 4 * ldo
    values = groups * GROUP * COLUMNS
    size = (values + groups * 2 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales = at + values
        row = 0
        while row < rows:
            left = rows - row
            ahead, step = _ahead(at, size, groups, row, rows)
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 8 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= BLOCK:
                _q8_0_4(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 3:
                _q8_0_3(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 2:
                _q8_0_2(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            else:
                _q8_0_1(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            row += BLOCK


@kernel
def gemm_q4_0(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    groups = inputs // GROUP
    lds, ldb = 4 * groups, 4 * ldo
    values = groups * GROUP // 2 * COLUMNS
    size = (values + groups * 2 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales = at + values
        row = 0
        while row < rows:
            left = rows - row
            ahead, step = _ahead(at, size, groups, row, rows)
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 8 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= BLOCK:
                _q4_0_4(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 3:
                _q4_0_3(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 2:
                _q4_0_2(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            else:
                _q4_0_1(at, scales, 0, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            row += BLOCK


@kernel
def gemm_q4_1(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    groups = inputs // GROUP
    lds, ldb = 4 * groups, 4 * ldo
    values = groups * GROUP // 2 * COLUMNS
    ends = values + groups * 2 * COLUMNS
    size = (ends + (groups + 1) // 2 * 4 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales, constants = at + values, at + ends
        row = 0
        while row < rows:
            left = rows - row
            ahead, step = _ahead(at, size, groups, row, rows)
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 8 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= BLOCK:
                _q4_1_4(at, scales, constants, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 3:
                _q4_1_3(at, scales, constants, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            elif left == 2:
                _q4_1_2(at, scales, constants, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            else:
                _q4_1_1(at, scales, constants, groups, a, ldx, s, n, lds, o, ldb, ahead, step)
            row += BLOCK


@kernel
def gemm_bf16(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    size = (inputs * COLUMNS * 2 + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        row = 0
        while row < rows:
            left = rows - row
            a, o = x + 4 * row * ldx, out + 4 * (row * ldo + panel * COLUMNS)
            if left >= 4:
                _bf16_4(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 4
            elif left >= 2:
                _bf16_2(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 2
            else:
                _bf16_1(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 1


@kernel
def gemm_f32(
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """See linear.py."""
    size = (inputs * COLUMNS * 4 + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        row = 0
        while row < rows:
            left = rows - row
            a, o = x + 4 * row * ldx, out + 4 * (row * ldo + panel * COLUMNS)
            if left >= 4:
                _f32_4(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 4
            elif left >= 2:
                _f32_2(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 2
            else:
                _f32_1(at, inputs, a, 4 * ldx, o, 4 * ldo)
                row += 1


@kernel
def gemm(
    kind: int,
    w: int,
    inputs: int,
    first: int,
    end: int,
    x: int,
    ldx: int,
    xs: int,
    xsum: int,
    rows: int,
    out: int,
    ldo: int,
) -> None:
    """Any format, `kind` being the Format's number; see linear.py."""
    if kind == Q4_1:
        gemm_q4_1(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    elif kind == Q8_0:
        gemm_q8_0(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    elif kind == Q4_0:
        gemm_q4_0(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    elif kind == BF16:
        gemm_bf16(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
    else:
        gemm_f32(w, inputs, first, end, x, ldx, xs, xsum, rows, out, ldo)
