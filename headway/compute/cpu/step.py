"""All layers of one step in one compiled call, run by every thread of a team.

A phase is cut over the threads by rows, by panels of columns or by the units of the
attention plan; between phases the threads meet. No phase's arithmetic depends on the cut.
"""

from typing import Any

from headway.compute.cpu.activation import silu_times_up
from headway.compute.cpu.attention import attend, merge
from headway.compute.cpu.entry import call_gemm
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.norm import rms_norm_rows
from headway.compute.cpu.pack import Format
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


@kernel
def prepare(matrix: Any, x: Any, xq: Any, xs: Any, xsum: Any, first_row: int, end_row: int) -> None:
    """Quantize rows of x, the input of `matrix`, if its format takes them so."""
    if matrix[KIND] < FIRST_FLOAT_FORMAT:
        quantize_rows(
            address_of(x),
            x.shape[1],
            first_row,
            end_row,
            matrix[INPUTS],
            address_of(xq),
            address_of(xs),
            address_of(xsum),
        )


@kernel
def add_rows(x: Any, more: Any, first_row: int, end_row: int) -> None:
    """x[rows] += more[rows, : columns of x]."""
    for row in range(first_row, end_row):
        for column in range(x.shape[1]):
            x[row, column] += more[row, column]


@kernel
def multiply(
    function: int,
    matrix: Any,
    x: Any,
    xq: Any,
    xs: Any,
    xsum: Any,
    rows: int,
    out: Any,
    thread: int,
    n: int,
) -> None:
    """This thread's panels of one linear layer, for all rows."""
    panels, inputs, kind = matrix[PANELS], matrix[INPUTS], matrix[KIND]
    source = address_of(x) if kind >= FIRST_FLOAT_FORMAT else address_of(xq)
    call_gemm(
        function,
        kind,
        matrix[ADDRESS],
        inputs,
        panels * thread // n,
        panels * (thread + 1) // n,
        source,
        inputs,
        address_of(xs),
        address_of(xsum),
        rows,
        address_of(out),
        out.shape[1],
    )


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
    count = head_rows.shape[0]
    first, end = count * thread // n, count * (thread + 1) // n
    for row in range(first, end):
        for column in range(x.shape[1]):
            head_x[row, column] = x[head_rows[row], column]
    rms_norm_rows(head_x, norms[norms.shape[0] - 1], eps, head_x, first, end)
    prepare(head, head_x, xq, xs, xsum, first, end)
    arrivals = finish(HEAD_INPUT, ticks, thread, n, counter, arrivals)
    multiply(function, head, head_x, xq, xs, xsum, count, logits, thread, n)
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
    rows, num_kv_heads = x.shape[0], keys.shape[2]
    first, end = rows * thread // n, rows * (thread + 1) // n
    for layer in range(linears.shape[0]):
        matrices = linears[layer]
        if layer > 0:
            add_rows(x, added, first, end)
        rms_norm_rows(x, norms[2 * layer], eps, normed, first, end)
        prepare(matrices[QKV], normed, xq, xs, xsum, first, end)
        arrivals = finish(ATTENTION_INPUT, ticks, thread, n, counter, arrivals)
        multiply(function, matrices[QKV], normed, xq, xs, xsum, rows, qkv, thread, n)
        arrivals = finish(QKV_PRODUCT, ticks, thread, n, counter, arrivals)
        rotate_and_store(
            qkv,
            positions,
            slots,
            cosines,
            sines,
            keys[layer],
            values[layer],
            num_heads,
            first,
            end,
        )
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
                num_kv_heads,
                merge_bounds[thread],
                merge_bounds[thread + 1],
            )
            arrivals = finish(MERGE, ticks, thread, n, counter, arrivals)
        prepare(matrices[OUTPUT], mixed, xq, xs, xsum, first, end)
        arrivals = finish(OUTPUT_INPUT, ticks, thread, n, counter, arrivals)
        multiply(function, matrices[OUTPUT], mixed, xq, xs, xsum, rows, added, thread, n)
        arrivals = finish(OUTPUT_PRODUCT, ticks, thread, n, counter, arrivals)
        add_rows(x, added, first, end)
        rms_norm_rows(x, norms[2 * layer + 1], eps, normed, first, end)
        prepare(matrices[GATE_UP], normed, xq, xs, xsum, first, end)
        arrivals = finish(MLP_INPUT, ticks, thread, n, counter, arrivals)
        multiply(function, matrices[GATE_UP], normed, xq, xs, xsum, rows, gate_up, thread, n)
        arrivals = finish(GATE_UP_PRODUCT, ticks, thread, n, counter, arrivals)
        silu_times_up(gate_up, inner, first, end, 0, inner.shape[1])
        prepare(matrices[DOWN], inner, xq, xs, xsum, first, end)
        arrivals = finish(DOWN_INPUT, ticks, thread, n, counter, arrivals)
        multiply(function, matrices[DOWN], inner, xq, xs, xsum, rows, added, thread, n)
        arrivals = finish(DOWN_PRODUCT, ticks, thread, n, counter, arrivals)
    add_rows(x, added, first, end)
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
