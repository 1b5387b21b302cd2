"""All layers of one step in one compiled call, run by every thread of a team.

A step of many rows gives each thread rows of its own: it takes them through everything but
attention, some at a time, so that what it writes is in its own cache when it is read again,
and the threads meet only around attention. A step of few rows gives each thread panels of
columns of every matrix, so that weights are read once; then they meet between all phases.
No phase's arithmetic depends on the cut.
"""

from typing import Any

from headway.compute.cpu.attention import attend, merge
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.layers import (
    KEY_NORM,
    POST_ATTENTION_NORM,
    POST_MLP_NORM,
    QUERY_NORM,
    TABLE,
    WINDOW,
    normalise_in_place,
)
from headway.compute.cpu.matrix import (
    behind,
    gate,
    multiply,
    normalise,
    quantize,
    widest_input,
)
from headway.compute.cpu.norm import add_rows
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
from headway.compute.cpu.rope import rotate_and_store
from headway.compute.cpu.vector import address_of
from headway.compute.cpu.weights import DOWN, GATE_UP, OUTPUT, QKV

LEAST_ROWS = 32  # of each thread, in a step that is cut by rows; fewer make products slower
BLOCK_ROWS = 64  # that a thread takes through all matrices at a time


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
    layers: Any,
    is_gelu: bool,
    query_factor: Any,
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
    claims: Any,
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
        matrices, own = linears[layer], layers[layer]
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
                cosines[own[TABLE]],
                sines[own[TABLE]],
                keys[layer],
                values[layer],
                num_heads,
                mine,
                mine + count,
                own[QUERY_NORM],
                own[KEY_NORM],
                eps,
                query_factor,
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
            address_of(claims[layer]),
            own[WINDOW],
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
                own[WINDOW],
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
            if own[POST_ATTENTION_NORM] != 0:
                post = own[POST_ATTENTION_NORM]
                normalise_in_place(own_added, size, count, added.shape[1], post, eps)
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
                is_gelu,
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
            if own[POST_MLP_NORM] != 0:
                post = own[POST_MLP_NORM]
                normalise_in_place(own_added, size, count, added.shape[1], post, eps)
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
