"""All layers of one step in one compiled call, run by every thread of a team.

A step of many rows gives each thread rows of its own: it takes them through everything but
attention, some at a time, so that what it writes is in its own cache when it is read again,
and the threads meet only around attention. A step of few rows gives each thread panels of
columns of every matrix, so that weights are read once; then they meet between all phases.
No phase's arithmetic depends on the cut.
"""

from typing import Any

from headway.compute.cpu.activation import gate_rows, quantize_gate_rows
from headway.compute.cpu.attention import attend, merge
from headway.compute.cpu.entry import call_gemm
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.norm import add_rows, normalise_rows
from headway.compute.cpu.pack import GROUP, Format
from headway.compute.cpu.phases import (
    ATTEND,
    ATTENTION_INPUT,
    DOWN_INPUT,
    DOWN_PRODUCT,
    GATE_UP_PRODUCT,
    HEAD_INPUT,
    HEAD_PRODUCT,
    MERGE,
    MLP_INPUT,
    OUTPUT_INPUT,
    OUTPUT_PRODUCT,
    QKV_PRODUCT,
    ROTATE,
    begin,
    finish,
)
from headway.compute.cpu.quantize import quantize_rows
from headway.compute.cpu.rope import rotate_and_store
from headway.compute.cpu.vector import address_of
from headway.compute.cpu.weights import ADDRESS, DOWN, GATE_UP, INPUTS, KIND, OUTPUT, PANELS, QKV

FIRST_FLOAT_FORMAT = int(Format.BF16)  # formats before it take quantized activations
LEAST_ROWS = 16  # of each thread, in a step that is cut by rows
BLOCK_ROWS = 64  # that a thread takes through all matrices at a time


@kernel
def is_quantized(matrix: Any) -> bool:
    """Whether this matrix takes quantized activations."""
    return bool(matrix[KIND] < FIRST_FLOAT_FORMAT)


@kernel
def multiply(
    function: int,
    matrix: Any,
    x: int,
    quantized: Any,
    rows: int,
    out: int,
    ldo: int,
    part: int,
    parts: int,
) -> None:
    """One of `parts` equal parts of a linear layer's panels, for `rows` rows.

    x          address of float32 [rows, inputs], read where the format takes no quantized ones
    quantized  addresses of xq, xs and xsum, as `quantize_rows` writes them
    out        address of float32 [rows, ldo]
    """
    panels, inputs = matrix[PANELS], matrix[INPUTS]
    xq, xs, xsum = quantized
    call_gemm(
        function,
        matrix[KIND],
        matrix[ADDRESS],
        inputs,
        panels * part // parts,
        panels * (part + 1) // parts,
        xq if is_quantized(matrix) else x,
        inputs,
        xs,
        xsum,
        rows,
        out,
        ldo,
    )


@kernel
def behind(quantized: Any, rows: int, inputs: int) -> Any:
    """Addresses of xq, xs and xsum, `rows` rows of a matrix with so many inputs further on."""
    xq, xs, xsum = quantized
    groups = 4 * rows * (inputs // GROUP)
    return xq + rows * inputs, xs + groups, xsum + groups


@kernel
def normalise(
    matrix: Any,
    x: int,
    size: int,
    rows: int,
    more: int,
    ldm: int,
    weight: int,
    eps: float,
    out: int,
    quantized: Any,
) -> None:
    """Make the input of `matrix` from rows of the residual stream, in the form that it takes."""
    xq, xs, xsum = quantized
    floats = 0 if is_quantized(matrix) else out
    normalise_rows(x, size, rows, more, ldm, weight, eps, floats, xq, xs, xsum)


@kernel
def quantize(matrix: Any, x: int, rows: int, quantized: Any) -> None:
    """Quantize rows of float32, the input of `matrix`, if its format takes them so."""
    if is_quantized(matrix):
        xq, xs, xsum = quantized
        quantize_rows(x, matrix[INPUTS], 0, rows, matrix[INPUTS], xq, xs, xsum)


@kernel
def gate(
    matrix: Any, gate_up: int, ldg: int, size: int, rows: int, inner: int, quantized: Any
) -> None:
    """silu(gate) * up, the input of `matrix`, in the form that it takes."""
    up = gate_up + 4 * size
    if is_quantized(matrix):
        xq, xs, xsum = quantized
        quantize_gate_rows(gate_up, up, ldg, size, rows, xq, xs, xsum)
    else:
        gate_rows(gate_up, up, ldg, size, rows, inner)


@kernel
def widest_input(linears: Any) -> int:
    """Most inputs of a matrix of the layers."""
    widest = 0
    for layer in range(linears.shape[0]):
        for number in range(linears.shape[1]):
            widest = max(widest, linears[layer, number, INPUTS])
    return widest


@kernel
def project(
    thread: int,
    n: int,
    counter: int,
    arrivals: int,
    function: int,
    ticks: Any,
    head: Any,
    norms: Any,
    eps: float,
    x: Any,
    head_rows: Any,
    head_x: Any,
    xq: Any,
    xs: Any,
    xsum: Any,
    logits: Any,
) -> None:
    """Logits of some rows of x."""
    count, size = head_rows.shape[0], x.shape[1]
    first, end = count * thread // n, count * (thread + 1) // n
    for row in range(first, end):
        for column in range(size):
            head_x[row, column] = x[head_rows[row], column]
    quantized = (address_of(xq), address_of(xs), address_of(xsum))
    own_x = address_of(head_x) + 4 * first * size
    weight = address_of(norms) + 4 * (norms.shape[0] - 1) * size
    own = behind(quantized, first, size)
    normalise(head, own_x, size, end - first, 0, 0, weight, eps, own_x, own)
    arrivals = finish(HEAD_INPUT, ticks, thread, n, counter, arrivals)
    multiply(
        function,
        head,
        address_of(head_x),
        quantized,
        count,
        address_of(logits),
        logits.shape[1],
        thread,
        n,
    )
    finish(HEAD_PRODUCT, ticks, thread, n, counter, arrivals)


@kernel
def step(
    thread: int,
    n: int,
    counter: int,
    arrivals: int,
    function: int,
    ticks: Any,
    linears: Any,
    head: Any,
    norms: Any,
    eps: float,
    num_heads: int,
    x: Any,
    normed: Any,
    xq: Any,
    xs: Any,
    xsum: Any,
    qkv: Any,
    mixed: Any,
    gate_up: Any,
    inner: Any,
    added: Any,
    slots: Any,
    cosines: Any,
    sines: Any,
    keys: Any,
    values: Any,
    units: Any,
    tokens: Any,
    positions: Any,
    partial_base: Any,
    split_tokens: Any,
    unit_bounds: Any,
    merge_bounds: Any,
    block_table: Any,
    partials: Any,
    scratch: Any,
    head_rows: Any,
    head_x: Any,
    logits: Any,
) -> None:
    begin(ticks, thread)
    size, all_rows = x.shape[1], x.shape[0]
    first, end = all_rows * thread // n, all_rows * (thread + 1) // n
    by_rows = n == 1 or all_rows >= n * LEAST_ROWS
    # Rows go through the matrices in blocks. Either a block is a thread's own, or all rows are
    # one, of which each thread has some, and parts of the panels.
    first_block, end_block = (first, end) if by_rows else (0, all_rows)
    block_rows = BLOCK_ROWS if by_rows else all_rows
    part, parts = (0, 1) if by_rows else (thread, n)
    # A block's buffers: normed, gate_up, inner, added and quantized inputs of matrices.
    place = thread * BLOCK_ROWS if by_rows else 0
    near_normed = address_of(normed) + 4 * place * size
    near_gate = address_of(gate_up) + 4 * place * gate_up.shape[1]
    near_inner = address_of(inner) + 4 * place * inner.shape[1]
    near_added = address_of(added) + 4 * place * added.shape[1]
    quantized = behind(
        (address_of(xq), address_of(xs), address_of(xsum)), place, widest_input(linears)
    )
    for layer in range(linears.shape[0]):
        matrices = linears[layer]
        weight = address_of(norms) + 4 * 2 * layer * size
        for block in range(first_block, end_block, block_rows):
            rows = min(block_rows, end_block - block)
            mine, count = (block, rows) if by_rows else (first, end - first)
            normalise(
                matrices[QKV],
                address_of(x) + 4 * mine * size,
                size,
                count,
                0,
                0,
                weight,
                eps,
                near_normed + 4 * (mine - block) * size,
                behind(quantized, mine - block, size),
            )
            arrivals = finish(ATTENTION_INPUT, ticks, thread, parts, counter, arrivals)
            multiply(
                function,
                matrices[QKV],
                near_normed,
                quantized,
                rows,
                address_of(qkv) + 4 * block * qkv.shape[1],
                qkv.shape[1],
                part,
                parts,
            )
            arrivals = finish(QKV_PRODUCT, ticks, thread, parts, counter, arrivals)
            rotate_and_store(
                qkv,
                positions,
                slots,
                cosines,
                sines,
                keys[layer],
                values[layer],
                num_heads,
                mine,
                mine + count,
            )
            arrivals = finish(ROTATE, ticks, thread, 1, counter, arrivals)
        arrivals = finish(ROTATE, ticks, thread, n, counter, arrivals)
        attend(
            units,
            tokens,
            positions,
            partial_base,
            block_table,
            keys[layer],
            values[layer],
            qkv,
            mixed,
            partials,
            scratch[thread],
            num_heads,
            unit_bounds[thread],
            unit_bounds[thread + 1],
        )
        arrivals = finish(ATTEND, ticks, thread, n, counter, arrivals)
        if split_tokens.shape[0] > 0:
            merge(
                split_tokens,
                positions,
                partial_base,
                partials,
                mixed,
                scratch[thread],
                num_heads,
                keys.shape[2],
                merge_bounds[thread],
                merge_bounds[thread + 1],
            )
            arrivals = finish(MERGE, ticks, thread, n, counter, arrivals)
        for block in range(first_block, end_block, block_rows):
            rows = min(block_rows, end_block - block)
            mine, count = (block, rows) if by_rows else (first, end - first)
            skipped = mine - block
            own_x = address_of(x) + 4 * mine * size
            own_added = near_added + 4 * skipped * added.shape[1]
            quantize(
                matrices[OUTPUT],
                address_of(mixed) + 4 * mine * mixed.shape[1],
                count,
                behind(quantized, skipped, mixed.shape[1]),
            )
            arrivals = finish(OUTPUT_INPUT, ticks, thread, parts, counter, arrivals)
            multiply(
                function,
                matrices[OUTPUT],
                address_of(mixed) + 4 * block * mixed.shape[1],
                quantized,
                rows,
                near_added,
                added.shape[1],
                part,
                parts,
            )
            arrivals = finish(OUTPUT_PRODUCT, ticks, thread, parts, counter, arrivals)
            normalise(
                matrices[GATE_UP],
                own_x,
                size,
                count,
                own_added,
                added.shape[1],
                weight + 4 * size,
                eps,
                near_normed + 4 * skipped * size,
                behind(quantized, skipped, size),
            )
            arrivals = finish(MLP_INPUT, ticks, thread, parts, counter, arrivals)
            multiply(
                function,
                matrices[GATE_UP],
                near_normed,
                quantized,
                rows,
                near_gate,
                gate_up.shape[1],
                part,
                parts,
            )
            arrivals = finish(GATE_UP_PRODUCT, ticks, thread, parts, counter, arrivals)
            gate(
                matrices[DOWN],
                near_gate + 4 * skipped * gate_up.shape[1],
                gate_up.shape[1],
                inner.shape[1],
                count,
                near_inner + 4 * skipped * inner.shape[1],
                behind(quantized, skipped, inner.shape[1]),
            )
            arrivals = finish(DOWN_INPUT, ticks, thread, parts, counter, arrivals)
            multiply(
                function,
                matrices[DOWN],
                near_inner,
                quantized,
                rows,
                near_added,
                added.shape[1],
                part,
                parts,
            )
            arrivals = finish(DOWN_PRODUCT, ticks, thread, parts, counter, arrivals)
            add_rows(own_x, size, count, own_added, added.shape[1])
    arrivals = finish(DOWN_PRODUCT, ticks, thread, n, counter, arrivals)
    project(
        thread,
        n,
        counter,
        arrivals,
        function,
        ticks,
        head,
        norms,
        eps,
        x,
        head_rows,
        head_x,
        xq,
        xs,
        xsum,
        logits,
    )
