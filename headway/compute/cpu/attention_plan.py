"""Cuts the attention of one step into units of work; done once, used by every layer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

CHUNK = 256  # positions; absolute, so that the sums of a row never depend on the plan
TILE_QUERIES = 48  # query rows (tokens x heads of one KV head) that share a pass over K and V
PIECES_PER_THREAD = 4  # a unit is cut when it is over twice a thread's share of this
UNIT_OVERHEAD = 64 * 16  # in query rows x positions: gathering addresses, packing queries
PARTIAL_EXTRA = 16  # floats behind a partial sum: its maximum, its total, padding
SCORE_FLOATS = CHUNK + 16  # of a row of scores

FIRST, COUNT, ROW, KV_HEAD, FIRST_CHUNK, END_CHUNK, SPLIT = range(7)  # columns of `units`


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Units in the order in which threads take them, and where split sums go.

    units          [U, 7] int64  FIRST and COUNT of the unit's tokens in `tokens`, ROW of the
                   block table, KV_HEAD, chunks FIRST_CHUNK .. END_CHUNK - 1, and SPLIT: 1 when
                   each chunk's sum is written to the partial sums, to be merged afterwards
    tokens         [N] int32   tokens of the flat batch; those of a unit ascend in position
    positions      [T] int32   of each token of the batch
    partial_base   [T] int64   place of a split token's partial sums, in floats; -1: not split
    split_tokens   [S] int32   tokens to merge; an item is one of them and one KV head
    unit_bounds    [threads + 1] int64  thread t does units unit_bounds[t] .. [t + 1] - 1
    merge_bounds   [threads + 1] int64  and then, behind a barrier, these merge items
    partial_floats             size of the partial sums of one layer (0: nothing to merge)
    """

    units: Ints
    tokens: Int32s
    positions: Int32s
    partial_base: Ints
    split_tokens: Int32s
    unit_bounds: Ints
    merge_bounds: Ints
    partial_floats: int


def scratch_floats(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Floats of scratch that one thread needs in `attend`; a multiple of 16."""
    rows = scratch_rows(num_heads // num_kv_heads)
    return rows * (3 * head_dim + SCORE_FLOATS + 4) + 3 * 2 * (CHUNK // 16)


def scratch_rows(group: int) -> int:
    """Most query rows of one unit, rounded up to whole vectors."""
    return max(TILE_QUERIES, -(-group // 16) * 16)


def plan_attention(
    starts: Ints, num_tokens: Ints, num_heads: int, num_kv_heads: int, head_dim: int, threads: int
) -> AttentionPlan:
    """Plan for rows that compute positions starts[r] .. starts[r] + num_tokens[r] - 1.

    starts, num_tokens  [R]  as in StepPlan; tokens lie row after row in the batch.
    """
    group = num_heads // num_kv_heads
    row, first, count, last = _tiles(starts, num_tokens, max(1, TILE_QUERIES // group))
    chunks = last // CHUNK + 1
    cost = count * group * (last + 1) + UNIT_OVERHEAD
    pieces = _pieces(cost, chunks, num_kv_heads, threads)
    units, unit_cost = _units((row, first, count, chunks, cost), pieces, num_kv_heads)
    offsets = np.cumsum(num_tokens) - num_tokens
    token_row = np.repeat(np.arange(len(starts)), num_tokens)
    tokens = np.arange(len(token_row), dtype=np.int32)
    positions = (tokens + (starts - offsets)[token_row]).astype(np.int32)
    split = np.repeat(pieces > 1, count)
    split_tokens = tokens[split]
    sizes = (positions[split_tokens] // CHUNK + 1) * (num_heads * (head_dim + PARTIAL_EXTRA))
    partial_base = np.full(len(tokens), -1, dtype=np.int64)
    partial_base[split_tokens] = np.cumsum(sizes) - sizes
    return AttentionPlan(
        units=units,
        tokens=tokens,
        positions=positions,
        partial_base=partial_base,
        split_tokens=split_tokens,
        unit_bounds=_bounds(unit_cost, threads),
        merge_bounds=_bounds(np.repeat(sizes, num_kv_heads), threads),
        partial_floats=int(sizes.sum()),
    )


def _tiles(starts: Ints, num_tokens: Ints, tile: int) -> tuple[Any, ...]:
    """Row, first token in the batch, tokens, and last position of every tile."""
    per_row = -(-num_tokens // tile)
    row = np.repeat(np.arange(len(starts)), per_row)
    index = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    within = index * tile
    count = np.minimum(tile, num_tokens[row] - within)
    first = (np.cumsum(num_tokens) - num_tokens)[row] + within
    return row, first, count, starts[row] + within + count - 1


def _pieces(cost: Ints, chunks: Ints, num_kv_heads: int, threads: int) -> Ints:
    """In how many ranges of chunks each tile is cut: 1 unless it would keep others waiting."""
    if threads == 1:
        return np.ones_like(chunks)
    share = cost.sum() * num_kv_heads / (PIECES_PER_THREAD * threads)
    wanted = np.where(cost > 2 * share, np.ceil(cost / share), 1).astype(np.int64)
    return np.minimum(wanted, chunks)


def _units(tiles: tuple[Ints, ...], pieces: Ints, num_kv_heads: int) -> tuple[Ints, Any]:
    """A unit for each tile, KV head and piece; and what each costs."""
    row, first, count, chunks, cost = tiles
    copies = pieces * num_kv_heads
    tile = np.repeat(np.arange(len(row)), copies)
    index = np.arange(len(tile)) - np.repeat(np.cumsum(copies) - copies, copies)
    kv_head, piece = np.divmod(index, pieces[tile])
    begin = chunks[tile] * piece // pieces[tile]
    end = chunks[tile] * (piece + 1) // pieces[tile]
    units = np.empty((len(tile), 7), dtype=np.int64)
    columns = (first[tile], count[tile], row[tile], kv_head, begin, end, pieces[tile] > 1)
    for column, values in enumerate(columns):
        units[:, column] = values
    return units, cost[tile] * (end - begin) / chunks[tile]


def _bounds(cost: Any, threads: int) -> Ints:
    """Cut a list of costs into `threads` runs of about the same sum."""
    total = np.cumsum(cost)
    bounds = np.zeros(threads + 1, dtype=np.int64)
    bounds[threads] = len(cost)
    if threads > 1 and len(cost):
        shares = total[-1] * np.arange(1, threads) / threads
        bounds[1:threads] = np.searchsorted(total - cost / 2, shares)
    return bounds
