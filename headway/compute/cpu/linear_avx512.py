"""Linear layers for CPUs with AVX-512 and its 8-bit dot product; see linear.py.

Rows go in fours, columns in 48: with the weights and one activation that fills the 32
registers. A panel is read from memory once; the next fours of rows find it in the cache.
"""

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.micro import Tile, quantized
from headway.compute.cpu.micro_float import floating
from headway.compute.cpu.pack import COLUMNS, GROUP, LINE, Format

Q8_0, Q4_0, Q4_1 = int(Format.Q8_0), int(Format.Q4_0), int(Format.Q4_1)
BF16 = int(Format.BF16)

_q8_0_1, _q8_0_2, _q8_0_3, _q8_0_4 = (quantized(Format.Q8_0, Tile(r)) for r in (1, 2, 3, 4))
_q4_0_1, _q4_0_2, _q4_0_3, _q4_0_4 = (quantized(Format.Q4_0, Tile(r)) for r in (1, 2, 3, 4))
_q4_1_1, _q4_1_2, _q4_1_3, _q4_1_4 = (quantized(Format.Q4_1, Tile(r)) for r in (1, 2, 3, 4))
_bf16_1, _bf16_2, _bf16_4 = (floating(Format.BF16, Tile(r)) for r in (1, 2, 4))
_f32_1, _f32_2, _f32_4 = (floating(Format.F32, Tile(r)) for r in (1, 2, 4))


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
    values = groups * GROUP * COLUMNS
    size = (values + groups * 2 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales = at + values
        row = 0
        while row < rows:
            left = rows - row
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 4 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= 4:
                _q8_0_4(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 3:
                _q8_0_3(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 2:
                _q8_0_2(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            else:
                _q8_0_1(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            row += 4


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
    values = groups * GROUP // 2 * COLUMNS
    size = (values + groups * 2 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales = at + values
        row = 0
        while row < rows:
            left = rows - row
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 4 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= 4:
                _q4_0_4(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 3:
                _q4_0_3(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 2:
                _q4_0_2(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            else:
                _q4_0_1(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            row += 4


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
    values = groups * GROUP // 2 * COLUMNS
    size = (values + groups * 4 * COLUMNS + LINE - 1) // LINE * LINE
    for panel in range(first, end):
        at = w + panel * size
        scales = at + values
        row = 0
        while row < rows:
            left = rows - row
            a, s, n = x + row * ldx, xs + 4 * row * groups, xsum + 4 * row * groups
            o = out + 4 * (row * ldo + panel * COLUMNS)
            if left >= 4:
                _q4_1_4(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 3:
                _q4_1_3(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            elif left == 2:
                _q4_1_2(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            else:
                _q4_1_1(at, scales, groups, a, ldx, s, n, 4 * groups, o, 4 * ldo)
            row += 4


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
