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

from headway.compute.cpu.atomics import atomic_add
from headway.compute.cpu.attention_chunk import (
    GROUPS,
    LOG2_E,
    SCORE_BYTES,
    copy_floats,
    find_groups,
    finish,
    fold,
    pack_queries,
    score_chunk,
    visible,
    weigh_chunk,
)
from headway.compute.cpu.attention_int8 import expand_keys, expand_values
from headway.compute.cpu.attention_plan import (
    CHUNK,
    COUNT,
    END_CHUNK,
    FIRST,
    FIRST_CHUNK,
    KV_HEAD,
    PARTIAL_EXTRA,
    ROW,
    SPLIT,
    TILE_QUERIES,
)
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.kvpool import Stored, head_dim_of, key_numbers, value_numbers
from headway.compute.cpu.pairs import Floats, from_bits, to_bits
from headway.compute.cpu.vector import address_of, read, write


@kernel
def first_chunk(position: int, window: int) -> int:
    """The first chunk that a query sees."""
    return max(0, position - window + 1) // CHUNK if window > 0 else 0


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
    claimed: int,
    window: int = 0,
) -> None:
    """Do units of a plan for one layer, each that no other thread has claimed.

    units, tokens, positions, partial_base  of the AttentionPlan
    block_table  [R, width] int32
    keys         [blocks, kv heads, head_dim / 2, block_size, 2] uint16, bfloat16 bits, or int8
    values       [blocks, kv heads, block_size / 2, head_dim, 2] as keys; see KvShape for int8
    queries      [T, >= num_heads * head_dim] float32, query heads first (the fused QKV output)
    out          [T, num_heads * head_dim] float32; rows of split tokens are left to `merge`
    partials     [plan.partial_floats] float32, shared by all threads
    scratch      [scratch_floats(...)] float32 of this thread, starting at a cache line
    claimed      address of an int64, 0 before the layer: how many units are claimed
    window       0, or how many positions a query sees, its own the last; chunks before it
                 are neither read nor counted

    head_dim and block_size are multiples of 32 and of 16. Scale is 1 / sqrt(head_dim).
    """
    num_kv_heads, head_dim, block_size = keys.shape[1], out.shape[1] // num_heads, keys.shape[3]
    is_expanded = keys.itemsize == 1
    key_step, value_step = 2 * keys.itemsize, values.shape[3] * values.itemsize
    key_stride = 64 if is_expanded else 2 * keys.itemsize * block_size
    group = num_heads // num_kv_heads
    max_rows = max(TILE_QUERIES, (group + 15) // 16 * 16)
    query = address_of(scratch)
    scores = query + 2 * max_rows * head_dim
    sums = scores + max_rows * SCORE_BYTES
    state = sums + 4 * max_rows * head_dim
    stats = state + 4 * max_rows * head_dim  # of each row: top and total, of chunk and of state
    expanded = stats + 4 * 4 * max_rows
    key_groups = expanded + 2 * CHUNK * head_dim
    value_groups = key_groups + 8 * GROUPS
    fetch = value_groups + 8 * GROUPS
    stride = 4 * (head_dim + PARTIAL_EXTRA)
    # The next unit is claimed before this one is done, so that its K can be fetched early.
    u, next_unit = -1, atomic_add(claimed, 1)
    while next_unit < len(units):
        u, next_unit = next_unit, atomic_add(claimed, 1)
        first, count = units[u, FIRST], units[u, COUNT]
        kv_head, split = units[u, KV_HEAD], units[u, SPLIT]
        rows = count * group
        last_position = positions[tokens[first + count - 1]]
        pack_queries(queries, tokens[first : first + count], kv_head, group, head_dim, query)
        begin = max(units[u, FIRST_CHUNK], first_chunk(positions[tokens[first]], window))
        for chunk in range(begin, units[u, END_CHUNK]):
            start = chunk * CHUNK
            table, kv, last = block_table[units[u, ROW]], kv_head, last_position
            find_groups(table, start, last, kv, keys, block_size, key_step, key_groups)
            find_groups(table, start, last, kv, values, block_size, value_step, value_groups)
            following = start + CHUNK  # whose K is fetched while V is worked on
            if chunk + 1 == units[u, END_CHUNK] and next_unit < len(units):
                table, kv = block_table[units[next_unit, ROW]], units[next_unit, KV_HEAD]
                following = units[next_unit, FIRST_CHUNK] * CHUNK
                last = positions[tokens[units[next_unit, FIRST] + units[next_unit, COUNT] - 1]]
            find_groups(table, following, last, kv, keys, block_size, key_step, fetch)
            soon = value_groups
            if is_expanded:
                groups = min(GROUPS, (last_position - start) // 16 + 1)
                expand_keys(start, groups, key_groups, head_dim, block_size, value_groups, expanded)
                soon = key_groups
            score_chunk(
                rows,
                group,
                tokens,
                positions,
                first,
                start,
                window,
                query,
                head_dim,
                key_groups,
                key_stride,
                soon,
                scores,
            )
            soon = fetch
            if is_expanded:
                expand_values(groups, value_groups, head_dim, fetch, 2 * block_size, expanded)
                soon = value_groups
            weigh_chunk(
                rows,
                group,
                tokens,
                positions,
                first,
                start,
                window,
                scores,
                stats,
                value_groups,
                soon,
                head_dim,
                sums,
            )
            for r in range(rows):
                token = tokens[first + r // group]
                low, limit = visible(positions[token], start, window)
                if limit <= low:
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
                        chunk == first_chunk(positions[token], window),
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
    window: int = 0,
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
        begin = first_chunk(positions[token], window)
        base = address_of(partials) + 4 * partial_base[token] + kv_head * chunks * group * stride
        for g in range(group):
            for chunk in range(begin, chunks):
                source = base + (chunk * group + g) * stride
                top, total = read(source + 4 * head_dim), read(source + 4 * head_dim + 4)
                fold(source, top, total, state, stats, head_dim, chunk == begin)
            column = (kv_head * group + g) * head_dim
            target = address_of(out) + 4 * (token * out.shape[1] + column)
            finish(state, read(stats + 4), target, head_dim)


LEAST_TOP = -1e30  # of a chunk in which nothing is seen


def attention_reference(
    queries: Floats,
    keys: Stored,
    values: Stored,
    block_table: Any,
    starts: Any,
    num_tokens: Any,
    *,
    rounded: bool = True,
    window: int = 0,
) -> npt.NDArray[np.float64]:
    """The same in float64, row by row; clear, not fast.

    Query and weights are rounded as the kernel does it, if `rounded`; weights are rounded
    within a chunk, relative to its maximum.
    queries      [T, num_heads * head_dim] without the K and V columns
    keys, values, block_table, starts, num_tokens  as in `attend` and the plan
    returns      [T, num_heads * head_dim]
    """
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    head_dim = head_dim_of(values)
    scaled = queries * np.float32(LOG2_E / np.sqrt(head_dim))
    to_pairs = _as_bfloat16 if rounded else _as_it_is
    heads = to_pairs(scaled).astype(np.float64).reshape(len(queries), num_kv_heads, -1, head_dim)
    out = np.empty_like(heads)
    token = 0
    for row, (start, count) in enumerate(zip(starts, num_tokens, strict=True)):
        blocks = block_table[row, : -(-(start + count) // block_size)]
        k, v = (
            data.astype(np.float64).swapaxes(0, 1).reshape(num_kv_heads, -1, head_dim)
            for data in (key_numbers(keys[blocks]), value_numbers(values[blocks]))
        )
        for position in range(start, start + count):
            length = position + 1
            scores = heads[token] @ k[:, :length].swapaxes(1, 2)
            if window:
                scores[..., : max(0, length - window)] = -np.inf
            first = np.arange(0, length, CHUNK)
            highest = np.maximum.reduceat(scores, first, axis=-1)
            top = np.repeat(np.maximum(highest, LEAST_TOP), CHUNK, axis=-1)[..., :length]
            weights = to_pairs(np.exp2(scores - top))
            weights = weights * np.exp2(top - scores.max(axis=-1, keepdims=True))
            out[token] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, :length]
            token += 1
    return out.reshape(len(queries), -1)


def _as_bfloat16(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return from_bits(to_bits(numbers))


def _as_it_is(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return numbers
