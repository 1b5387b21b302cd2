"""Linear layers for CPUs with the 8-bit dot product in 256 bits (AVX-VNNI); see linear.py.

As linear_avx2.py, with one instruction for a step; float formats are served by that file.
"""

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.linear_avx2 import gemm_bf16, gemm_f32
from headway.compute.cpu.micro import Tile, quantized
from headway.compute.cpu.pack import COLUMNS, GROUP, LINE, Format

Q8_0, Q4_0, Q4_1 = int(Format.Q8_0), int(Format.Q4_0), int(Format.Q4_1)
BF16 = int(Format.BF16)
# Columns at once: of one row 24, of two rows 16; each divides a panel.
ONE, TWO = Tile(1, vectors=3, lanes=8), Tile(2, vectors=2, lanes=8)
WIDE, NARROW = 24, 16

_q8_0_1 = quantized(Format.Q8_0, ONE, vnni=True)
_q8_0_2 = quantized(Format.Q8_0, TWO, vnni=True)
_q4_0_1 = quantized(Format.Q4_0, ONE, vnni=True)
_q4_0_2 = quantized(Format.Q4_0, TWO, vnni=True)
_q4_1_1 = quantized(Format.Q4_1, ONE, vnni=True)
_q4_1_2 = quantized(Format.Q4_1, TWO, vnni=True)


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
            a, s, n = x + row * ldx, xs + row * lds, xsum + 2 * row * lds
            o = out + row * ldb + 4 * panel * COLUMNS
            if rows - row >= 2:
                for c in range(0, COLUMNS, NARROW):
                    q, d, y = at + 4 * c, scales + 2 * c, o + 4 * c
                    _q8_0_2(q, d, 0, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
                row += 2
            else:
                for c in range(0, COLUMNS, WIDE):
                    q, d, y = at + 4 * c, scales + 2 * c, o + 4 * c
                    _q8_0_1(q, d, 0, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
                row += 1


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
            a, s, n = x + row * ldx, xs + row * lds, xsum + 2 * row * lds
            o = out + row * ldb + 4 * panel * COLUMNS
            if rows - row >= 2:
                for c in range(0, COLUMNS, NARROW):
                    q, d, y = at + 4 * c, scales + 2 * c, o + 4 * c
                    _q4_0_2(q, d, 0, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
                row += 2
            else:
                for c in range(0, COLUMNS, WIDE):
                    q, d, y = at + 4 * c, scales + 2 * c, o + 4 * c
                    _q4_0_1(q, d, 0, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
                row += 1


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
            a, s, n = x + row * ldx, xs + row * lds, xsum + 2 * row * lds
            o = out + row * ldb + 4 * panel * COLUMNS
            if rows - row >= 2:
                for c in range(0, COLUMNS, NARROW):
                    q, d, e, y = at + 4 * c, scales + 2 * c, constants + 4 * c, o + 4 * c
                    _q4_1_2(q, d, e, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
                row += 2
            else:
                for c in range(0, COLUMNS, WIDE):
                    q, d, e, y = at + 4 * c, scales + 2 * c, constants + 4 * c, o + 4 * c
                    _q4_1_1(q, d, e, groups, a, ldx, s, n, lds, y, ldb, 0, 0)
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
