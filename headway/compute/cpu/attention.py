"""Attention over paged K and V, one kernel for decode and for chunks of a prompt.

The history of a query is cut into chunks of CHUNK positions, counted from position 0. Each
chunk gives a maximum, a total and a weighted sum of V; chunks are folded in ascending order.
That order is the same however the work is cut, so the bits are too. Only positions up to
the query's own are read as V, so what lies behind a sequence's end cannot matter.
Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022 (FlashAttention).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.attention_plan import (
    CHUNK,
    COUNT,
    END_CHUNK,
    FIRST,
    FIRST_CHUNK,
    KV_HEAD,
    LOOKAHEAD,
    PARTIAL_EXTRA,
    ROW,
    SCORE_FLOATS,
    SPLIT,
    TILE_QUERIES,
)
from headway.compute.cpu.attention_tiles import (
    TILE_ROWS,
    TILE_VECTORS,
    scores_single,
    scores_wide,
    values_pair,
    values_wide,
)
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.kvpool import Bits, Floats, from_bits
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
def attend(
    units: Any,
    tokens: Any,
    positions: Any,
    partial_base: Any,
    block_table: Any,
    keys: Any,
    values: Any,
    queries: Any,
    out: Any,
    partials: Any,
    scratch: Any,
    num_heads: int,
    first_unit: int,
    end_unit: int,
) -> None:
    """Do units first_unit .. end_unit - 1 of a plan for one layer.

    units, tokens, positions, partial_base  of the AttentionPlan
    block_table  [R, width] int32
    keys         [blocks, kv heads, head_dim, block_size] uint16, bfloat16 bits
    values       [blocks, kv heads, block_size, head_dim] uint16
    queries      [T, >= num_heads * head_dim] float32, query heads first (the fused QKV output)
    out          [T, num_heads * head_dim] float32; rows of split tokens are left to `merge`
    partials     [plan.partial_floats] float32, shared by all threads
    scratch      [scratch_floats(...)] float32 of this thread, starting at a cache line

    head_dim and block_size are multiples of 32 and of 16. Scale is 1 / sqrt(head_dim).
    """
    num_kv_heads, head_dim = keys.shape[1], keys.shape[2]
    group = num_heads // num_kv_heads
    max_rows = max(TILE_QUERIES, (group + 15) // 16 * 16)
    query = address_of(scratch)
    scores = query + 4 * max_rows * head_dim
    sums = scores + max_rows * SCORE_BYTES
    state = sums + 4 * max_rows * head_dim
    stats = state + 4 * max_rows * head_dim  # of each row: top and total, of chunk and of state
    key_groups = stats + 4 * 4 * max_rows
    value_groups = key_groups + 8 * (GROUPS + LOOKAHEAD)
    stride = 4 * (head_dim + PARTIAL_EXTRA)
    for u in range(first_unit, end_unit):
        first, count = units[u, FIRST], units[u, COUNT]
        kv_head, split = units[u, KV_HEAD], units[u, SPLIT]
        rows = count * group
        last_position = positions[tokens[first + count - 1]]
        pack_queries(queries, tokens[first : first + count], kv_head, group, head_dim, query)
        for chunk in range(units[u, FIRST_CHUNK], units[u, END_CHUNK]):
            start = chunk * CHUNK
            needed = min(GROUPS, (last_position - start) // 16 + 1)
            table = block_table[units[u, ROW]]
            find_groups(table, chunk, needed, kv_head, keys, values, key_groups, value_groups)
            score_chunk(
                rows,
                group,
                tokens,
                positions,
                first,
                start,
                query,
                head_dim,
                key_groups,
                2 * keys.shape[3],
                scores,
            )
            weigh_chunk(
                rows,
                group,
                tokens,
                positions,
                first,
                start,
                scores,
                stats,
                value_groups,
                head_dim,
                sums,
            )
            for r in range(rows):
                token = tokens[first + r // group]
                if positions[token] < start:
                    continue
                top, total = read(stats + 16 * r), read(stats + 16 * r + 4)
                source = sums + 4 * r * head_dim
                if split:
                    chunks = positions[token] // CHUNK + 1
                    index = (kv_head * chunks + chunk) * group + r % group
                    target = address_of(partials) + 4 * partial_base[token] + index * stride
                    copy_floats(source, target, head_dim)
                    write(target + 4 * head_dim, top)
                    write(target + 4 * head_dim + 4, total)
                else:
                    fold(
                        source,
                        top,
                        total,
                        state + 4 * r * head_dim,
                        stats + 16 * r + 8,
                        head_dim,
                        chunk == 0,
                    )
        if not split:
            for r in range(rows):
                column = (kv_head * group + r % group) * head_dim
                target = address_of(out) + 4 * (tokens[first + r // group] * out.shape[1] + column)
                finish(state + 4 * r * head_dim, read(stats + 16 * r + 12), target, head_dim)


@kernel
def merge(
    split_tokens: Any,
    positions: Any,
    partial_base: Any,
    partials: Any,
    out: Any,
    scratch: Any,
    num_heads: int,
    num_kv_heads: int,
    first_item: int,
    end_item: int,
) -> None:
    """Fold the chunks of split tokens in ascending order; arguments as in `attend`."""
    group = num_heads // num_kv_heads
    head_dim = out.shape[1] // num_heads
    stride = 4 * (head_dim + PARTIAL_EXTRA)
    state = address_of(scratch)
    stats = state + 4 * head_dim
    for item in range(first_item, end_item):
        token = split_tokens[item // num_kv_heads]
        kv_head = item % num_kv_heads
        chunks = positions[token] // CHUNK + 1
        base = address_of(partials) + 4 * partial_base[token] + kv_head * chunks * group * stride
        for g in range(group):
            for chunk in range(chunks):
                source = base + (chunk * group + g) * stride
                top, total = read(source + 4 * head_dim), read(source + 4 * head_dim + 4)
                fold(source, top, total, state, stats, head_dim, chunk == 0)
            column = (kv_head * group + g) * head_dim
            target = address_of(out) + 4 * (token * out.shape[1] + column)
            finish(state, read(stats + 4), target, head_dim)


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
    chunk: int,
    needed: int,
    kv_head: int,
    keys: Any,
    values: Any,
    key_groups: int,
    value_groups: int,
) -> None:
    """Addresses of the K and V of each 16 positions of a chunk; past the end, the last again."""
    num_kv_heads, head_dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    key_base, value_base = address_of(keys), address_of(values)
    for i in range(GROUPS + LOOKAHEAD):
        position = chunk * CHUNK + 16 * min(i, needed - 1)
        offset = position % block_size
        block = np.intp(table[position // block_size]) * num_kv_heads + kv_head
        place = block * head_dim * block_size
        write_address(key_groups + 8 * i, key_base + 2 * (place + offset))
        write_address(value_groups + 8 * i, value_base + 2 * (place + offset * head_dim))


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
                scores_wide(end - begin, base, head_dim, key_groups + 8 * i, key_stride, out)
            else:
                for j in range(max(0, needed)):
                    place = key_groups + 8 * (i + j)
                    scores_single(end - begin, base, head_dim, place, key_stride, out + 64 * j)


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
    rows: int, weights: int, first: int, end: int, value_groups: int, head_dim: int, out: int
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


def attention_reference(
    queries: Floats, keys: Bits, values: Bits, block_table: Any, starts: Any, num_tokens: Any
) -> npt.NDArray[np.float64]:
    """The same in float64, row by row; clear, not fast.

    queries      [T, num_heads * head_dim] without the K and V columns
    keys, values, block_table, starts, num_tokens  as in `attend` and the plan
    returns      [T, num_heads * head_dim]
    """
    num_kv_heads, head_dim, block_size = keys.shape[1:]
    heads = queries.reshape(len(queries), num_kv_heads, -1, head_dim).astype(np.float64)
    out = np.empty_like(heads)
    token = 0
    for row, (start, count) in enumerate(zip(starts, num_tokens, strict=True)):
        for position in range(start, start + count):
            length = position + 1
            blocks = block_table[row, : -(-length // block_size)]
            k = from_bits(keys[blocks]).astype(np.float64).transpose(1, 2, 0, 3)
            k = k.reshape(num_kv_heads, head_dim, -1)[..., :length]
            v = from_bits(values[blocks]).astype(np.float64).transpose(1, 0, 2, 3)
            v = v.reshape(num_kv_heads, -1, head_dim)[:, :length]
            scores = heads[token] @ k / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[token] = weights / weights.sum(axis=-1, keepdims=True) @ v
            token += 1
    return out.reshape(len(queries), -1)
