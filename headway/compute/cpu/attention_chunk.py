"""One chunk of positions in attention: scores, softmax, weighted V, and folding chunks together.

Arguments that end up in memory are byte addresses, described where they are made (`attend`).
`tokens`, `positions` and `first` say which position each query row stands at: row r belongs
to token tokens[first + r // group], and rows ascend in position.
"""

from typing import Any

import numpy as np

from headway.compute.cpu.attention_pairs import add_single, exp2, scatter_pairs, soften_pair
from headway.compute.cpu.attention_plan import CHUNK, SCORE_FLOATS
from headway.compute.cpu.attention_tiles import (
    TILE_ROWS,
    TILE_VECTORS,
    scores_single,
    scores_wide,
    values_pair,
    values_wide,
)
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    address_of,
    drop_first,
    first_lane,
    fma,
    keep_first,
    load,
    max_lanes,
    maximum,
    multiply,
    read,
    read_address,
    splat,
    store,
    sum_lanes,
    write,
    write_address,
)

GROUPS = CHUNK // 16
SCORE_BYTES = 4 * SCORE_FLOATS
VALUE_COLUMNS = 16 * TILE_VECTORS
LOG2_E = 1.4426950408889634
MINUS_INFINITY = np.float32(-np.inf)


@kernel
def row_block(block: int, rows: int) -> tuple[int, int]:
    """First and end row of a block of at most TILE_ROWS; blocks are of even size."""
    blocks = (rows + TILE_ROWS - 1) // TILE_ROWS
    return rows * block // blocks, rows * (block + 1) // blocks


@kernel
def pack_queries(
    queries: Any, tokens: Any, kv_head: int, group: int, head_dim: int, packed: int
) -> None:
    """Queries in units of log2(e) / sqrt(head_dim), rounded to bfloat16.

    Block after block of rows, as pairs [head_dim / 2, rows of the block].
    """
    scale = np.float32(LOG2_E / np.sqrt(head_dim))
    rows = len(tokens) * group
    for block in range((rows + TILE_ROWS - 1) // TILE_ROWS):
        begin, end = row_block(block, rows)
        for r in range(begin, end):
            column = (kv_head * group + r % group) * head_dim
            token = np.intp(tokens[r // group])
            target = packed + 2 * begin * head_dim + 4 * (r - begin)
            source = address_of(queries) + 4 * (token * queries.shape[1] + column)
            step = 4 * (end - begin)
            for d in range(0, head_dim, 32):
                scatter_pairs(source + 4 * d, scale, target + d // 2 * step, step)


@kernel
def find_groups(
    table: Any,
    start: int,
    last: int,
    kv_head: int,
    data: Any,
    block_size: int,
    step: int,
    out: int,
) -> None:
    """Addresses of a chunk's groups of 16 positions; past position `last`, its own again.

    data  K or V of one layer, in which only the blocks may lie apart; step is the distance
          from one position to the next, in bytes
    """
    base = address_of(data) + kv_head * data.strides[1]
    position, last = min(start, last // 16 * 16), last // 16 * 16
    block, offset = position // block_size, position % block_size
    for i in range(GROUPS):
        place = base + np.intp(table[block]) * data.strides[0]
        write_address(out + 8 * i, place + offset * step)
        if position < last:
            position += 16
            offset += 16
            if offset == block_size:
                block += 1
                offset = 0


@kernel
def visible(position: int, start: int, window: int) -> tuple[int, int]:
    """Which positions of a chunk a query sees: low .. limit - 1, none where limit <= low.

    window  0, or how many positions a query sees, its own the last
    """
    low = max(0, position - window + 1 - start) if window > 0 else 0
    return low, min(CHUNK, position - start + 1)


@kernel
def score_chunk(
    rows: int,
    group: int,
    tokens: Any,
    positions: Any,
    first: int,
    start: int,
    window: int,
    query: int,
    head_dim: int,
    key_groups: int,
    key_stride: int,
    value_groups: int,
    scores: int,
) -> None:
    """Scores of all rows with a chunk's positions, as far as a block of rows needs them."""
    blocks = (rows + TILE_ROWS - 1) // TILE_ROWS
    for i in range(0, GROUPS, TILE_VECTORS):
        for block in range(blocks):
            begin, end = row_block(block, rows)
            low, _ = visible(positions[tokens[first + begin // group]], start, window)
            last = positions[tokens[first + (end - 1) // group]] - start
            needed = min(GROUPS, last // 16 + 1) - i
            base = query + 2 * begin * head_dim
            out = scores + begin * SCORE_BYTES + 64 * i
            if low >= 16 * (i + TILE_VECTORS):
                continue
            if needed >= TILE_VECTORS - 1:
                keys, soon = key_groups + 8 * i, value_groups + 8 * i
                scores_wide(end - begin, base, head_dim, keys, key_stride, soon, out)
            else:
                for j in range(needed):
                    keys, soon = key_groups + 8 * (i + j), value_groups + 8 * (i + j)
                    place = out + 64 * j
                    scores_single(end - begin, base, head_dim, keys, key_stride, soon, place)


@kernel
def weigh_chunk(
    rows: int,
    group: int,
    tokens: Any,
    positions: Any,
    first: int,
    start: int,
    window: int,
    scores: int,
    stats: int,
    value_groups: int,
    fetch: int,
    head_dim: int,
    sums: int,
) -> None:
    """Softmax of each row's scores within the chunk, and the sum of V under those weights.

    Each row adds its pairs of positions in ascending order. Those that a whole block of rows
    sees are added together, those before and behind row by row.
    """
    for i in range(0, rows * head_dim, 16):
        store(sums + 4 * i, splat(np.float32(0.0)))
    for r in range(rows):
        low, limit = visible(positions[tokens[first + r // group]], start, window)
        if limit > low:
            top, total = soften(scores + r * SCORE_BYTES, low, limit)
            write(stats + 16 * r, top)
            write(stats + 16 * r + 4, total)
    for block in range((rows + TILE_ROWS - 1) // TILE_ROWS):
        begin, end = row_block(block, rows)
        last_low, _ = visible(positions[tokens[first + (end - 1) // group]], start, window)
        _, first_limit = visible(positions[tokens[first + begin // group]], start, window)
        common, common_end = last_low // 2, max(last_low // 2, first_limit // 2)
        for r in range(begin, end):
            low, limit = visible(positions[tokens[first + r // group]], start, window)
            weights, out = scores + r * SCORE_BYTES, sums + 4 * r * head_dim
            before = min(common, limit // 2)
            weigh_rows(1, weights, low // 2, before, value_groups, fetch, head_dim, out)
        weigh_rows(
            end - begin,
            scores + begin * SCORE_BYTES,
            common,
            common_end,
            value_groups,
            fetch,
            head_dim,
            sums + 4 * begin * head_dim,
        )
        for r in range(begin, end):
            low, limit = visible(positions[tokens[first + r // group]], start, window)
            weights, out = scores + r * SCORE_BYTES, sums + 4 * r * head_dim
            weigh_rows(1, weights, common_end, limit // 2, value_groups, fetch, head_dim, out)
            if limit > low and limit % 2:
                weigh_last(weights, limit - 1, value_groups, head_dim, out)


@kernel
def weigh_last(weights: int, position: int, value_groups: int, head_dim: int, out: int) -> None:
    """Add the weighted V of one position; of its pair the later one is not looked at."""
    pairs = read_address(value_groups + position // 16 * 8) + position % 16 * 2 * head_dim
    for d in range(0, head_dim, 16):
        add_single(weights + 2 * position, pairs + 4 * d, out + 4 * d)


@kernel
def soften(scores: int, low: int, limit: int) -> tuple[float, float]:
    """Turn float32 scores low .. limit - 1 into bfloat16 weights 2**(score - top), in place.

    Weights from the multiple of 32 before `low` to the one behind `limit` become zero.
    Returns top, and the sum of the weights as they were rounded.
    """
    begin, end = low // 32 * 2, (limit + 31) // 32 * 2
    for i in range(begin, (low + 15) // 16):
        kept = drop_first(load(scores + 64 * i), low - 16 * i, MINUS_INFINITY)
        store(scores + 64 * i, kept)
    for i in range(limit // 16, end):
        kept = keep_first(load(scores + 64 * i), limit - 16 * i, MINUS_INFINITY)
        store(scores + 64 * i, kept)
    even, odd = load(scores + 64 * begin), load(scores + 64 * begin + 64)
    for i in range(begin + 2, end, 2):
        even = maximum(even, load(scores + 64 * i))
        odd = maximum(odd, load(scores + 64 * i + 64))
    top = max_lanes(maximum(even, odd))
    total = splat(np.float32(0.0))
    for i in range(begin, end, 2):
        total = soften_pair(scores + 64 * i, scores + 32 * i, top, total)
    return top, sum_lanes(total)


@kernel
def weigh_rows(
    rows: int,
    weights: int,
    first: int,
    end: int,
    value_groups: int,
    fetch: int,
    head_dim: int,
    out: int,
) -> None:
    """Add the weighted V of pairs first .. end - 1 of the chunk to some rows of `out`."""
    if end <= first:
        return
    column = 0
    while column < head_dim:
        target = out + 4 * column
        if head_dim - column >= VALUE_COLUMNS:
            values_wide(
                rows,
                weights,
                first,
                end,
                value_groups,
                fetch,
                4 * column,
                4 * head_dim,
                target,
                4 * head_dim,
            )
            column += VALUE_COLUMNS
        else:
            values_pair(
                rows,
                weights,
                first,
                end,
                value_groups,
                fetch,
                4 * column,
                4 * head_dim,
                target,
                4 * head_dim,
            )
            column += 32


@kernel
def fold(
    sums: int, top: float, total: float, state: int, stats: int, head_dim: int, is_first: bool
) -> None:
    """Fold a chunk's sums into the state: float32 [head_dim] with its top and total."""
    if is_first:
        copy_floats(sums, state, head_dim)
        write(stats, top)
        write(stats + 4, total)
        return
    old = read(stats)
    best = top if top > old else old
    keep = first_lane(exp2(splat(old - best)))
    take = first_lane(exp2(splat(top - best)))
    for d in range(0, head_dim, 16):
        fresh = multiply(load(sums + 4 * d), splat(take))
        store(state + 4 * d, fma(load(state + 4 * d), splat(keep), fresh))
    write(stats, best)
    write(stats + 4, read(stats + 4) * keep + total * take)


@kernel
def finish(state: int, total: float, out: int, head_dim: int) -> None:
    """Divide by the total."""
    factor = splat(np.float32(1.0) / total)
    for d in range(0, head_dim, 16):
        store(out + 4 * d, multiply(load(state + 4 * d), factor))


@kernel
def copy_floats(source: int, target: int, count: int) -> None:
    """Copy a multiple of 16 floats."""
    for i in range(0, count, 16):
        store(target + 4 * i, load(source + 4 * i))
