"""One chunk of positions in attention: scores, softmax, weighted V, and folding chunks together.

Arguments that end up in memory are byte addresses of float32, described where they are made
(`attend`). `tokens`, `positions` and `first` say which position each query row stands at:
row r belongs to token tokens[first + r // group], and rows ascend in position.
"""

from typing import Any

import numpy as np

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
    add,
    address_of,
    exp,
    first_lane,
    fma,
    keep_first,
    load,
    max_lanes,
    maximum,
    multiply,
    read,
    splat,
    store,
    subtract,
    sum_lanes,
    write,
    write_address,
)

GROUPS = CHUNK // 16
SCORE_BYTES = 4 * SCORE_FLOATS
VALUE_COLUMNS = 16 * TILE_VECTORS
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
    """Scaled queries, block after block of rows as float32 [head_dim, rows of the block]."""
    scale = np.float32(1.0 / np.sqrt(head_dim))
    rows = len(tokens) * group
    for block in range((rows + TILE_ROWS - 1) // TILE_ROWS):
        begin, end = row_block(block, rows)
        for r in range(begin, end):
            column = (kv_head * group + r % group) * head_dim
            token = tokens[r // group]
            target = packed + 4 * (begin * head_dim + r - begin)
            for d in range(head_dim):
                write(target + 4 * d * (end - begin), queries[token, column + d] * scale)


@kernel
def find_groups(
    table: Any,
    start: int,
    last: int,
    kv_head: int,
    data: Any,
    head_dim: int,
    step: int,
    out: int,
) -> None:
    """Addresses of a chunk's groups of 16 positions; past position `last`, its own again.

    data  K or V of one layer, in which only the blocks may lie apart; step is the distance
          from one position to the next, in values
    """
    block_size = data.shape[2] * data.shape[3] // head_dim
    base = address_of(data) + 2 * kv_head * head_dim * block_size
    for i in range(GROUPS):
        position = min(start + 16 * i, last // 16 * 16)
        block = np.intp(table[position // block_size])
        write_address(
            out + 8 * i, base + block * data.strides[0] + 2 * (position % block_size * step)
        )


@kernel
def score_chunk(
    rows: int,
    group: int,
    tokens: Any,
    positions: Any,
    first: int,
    start: int,
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
            last = positions[tokens[first + (end - 1) // group]] - start
            needed = min(GROUPS, last // 16 + 1) - i
            base = query + 4 * begin * head_dim
            out = scores + begin * SCORE_BYTES + 64 * i
            if needed >= 3:
                keys, soon = key_groups + 8 * i, value_groups + 8 * i
                scores_wide(end - begin, base, head_dim, keys, key_stride, soon, out)
            else:
                for j in range(max(0, needed)):
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
    scores: int,
    stats: int,
    value_groups: int,
    fetch: int,
    head_dim: int,
    sums: int,
) -> None:
    """Softmax of each row's scores within the chunk, and the sum of V under those weights."""
    for i in range(0, rows * head_dim, 16):
        store(sums + 4 * i, splat(np.float32(0.0)))
    for r in range(rows):
        limit = min(CHUNK, positions[tokens[first + r // group]] - start + 1)
        if limit > 0:
            top, total = soften(scores + r * SCORE_BYTES, limit)
            write(stats + 16 * r, top)
            write(stats + 16 * r + 4, total)
    for block in range((rows + TILE_ROWS - 1) // TILE_ROWS):
        begin, end = row_block(block, rows)
        common = max(0, min(CHUNK, positions[tokens[first + begin // group]] - start + 1))
        weigh_rows(
            end - begin,
            scores + begin * SCORE_BYTES,
            0,
            common,
            value_groups,
            fetch,
            head_dim,
            sums + 4 * begin * head_dim,
        )
        for r in range(begin, end):
            limit = min(CHUNK, positions[tokens[first + r // group]] - start + 1)
            weigh_rows(
                1,
                scores + r * SCORE_BYTES,
                common,
                limit,
                value_groups,
                fetch,
                head_dim,
                sums + 4 * r * head_dim,
            )


@kernel
def soften(scores: int, limit: int) -> tuple[float, float]:
    """Turn the first `limit` scores into exp(score - top); returns top and their sum."""
    groups = (limit + 15) // 16
    best = splat(MINUS_INFINITY)
    for i in range(groups):
        value = keep_first(load(scores + 64 * i), limit - 16 * i, MINUS_INFINITY)
        store(scores + 64 * i, value)
        best = maximum(best, value)
    top = max_lanes(best)
    total = splat(np.float32(0.0))
    for i in range(groups):
        value = exp(subtract(load(scores + 64 * i), splat(top)))
        store(scores + 64 * i, value)
        total = add(total, value)
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
    """Add the weighted V of positions first .. end - 1 of the chunk to some rows of `out`."""
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
                2 * column,
                2 * head_dim,
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
                2 * column,
                2 * head_dim,
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
    keep = first_lane(exp(splat(old - best)))
    take = first_lane(exp(splat(top - best)))
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
