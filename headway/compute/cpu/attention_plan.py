"""Cuts the attention of one step into units of work; done once, used by every layer."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.kvpool import KvShape

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
    starts: Ints,
    num_tokens: Ints,
    block_table: Int32s,
    shape: KvShape,
    num_heads: int,
    threads: int,
) -> AttentionPlan:
    """Plan for rows that compute positions starts[r] .. starts[r] + num_tokens[r] - 1.

    starts, num_tokens  [R] int64  as in StepPlan; tokens lie row after row in the batch
    block_table         [R, width] int32  each row's blocks, at least those it needs

    Chunks that lie in the same blocks for several decoding rows are worked on together.
    """
    group = num_heads // shape.num_kv_heads
    tile = max(1, TILE_QUERIES // group)
    shared = shared_chunks(starts, num_tokens, block_table, shape.block_size, tile)
    begin = np.zeros(len(starts), dtype=np.int64)  # the row's first chunk of its own
    for chunk, rows in shared:
        begin[rows] = chunk + 1
    offsets = np.cumsum(num_tokens) - num_tokens
    token_row = np.repeat(np.arange(len(starts)), num_tokens)
    tokens = np.arange(len(token_row))
    positions = tokens + (starts - offsets)[token_row]
    tiles = _row_tiles(starts, num_tokens, begin, tile)
    if shared:
        together, extra = _shared_tiles(shared, num_tokens, offsets, tile, len(tokens))
        tokens = np.concatenate((tokens, extra))
        tiles = _Tiles(*(np.concatenate(pair) for pair in zip(together, tiles, strict=True)))
    cost = tiles.size * group * tiles.width + UNIT_OVERHEAD
    pieces = _pieces(cost, tiles.end - tiles.begin, shape.num_kv_heads, threads)
    split = (pieces > 1) | (tiles.begin > 0) | tiles.is_shared
    units, unit_cost = _units(tiles, cost, pieces, split, shape.num_kv_heads)
    is_split = np.zeros(len(positions), dtype=np.bool_)
    is_split[tokens[: len(positions)]] = np.repeat(
        split[~tiles.is_shared], tiles.size[~tiles.is_shared]
    )
    split_tokens = np.flatnonzero(is_split)
    sizes = (positions[split_tokens] // CHUNK + 1) * (num_heads * (shape.head_dim + PARTIAL_EXTRA))
    partial_base = np.full(len(positions), -1, dtype=np.int64)
    partial_base[split_tokens] = np.cumsum(sizes) - sizes
    return AttentionPlan(
        units=units,
        tokens=tokens.astype(np.int32),
        positions=positions.astype(np.int32),
        partial_base=partial_base,
        split_tokens=split_tokens.astype(np.int32),
        unit_bounds=_bounds(unit_cost, threads),
        merge_bounds=_bounds(np.repeat(sizes, shape.num_kv_heads), threads),
        partial_floats=int(sizes.sum()),
    )


def shared_chunks(
    starts: Ints, num_tokens: Ints, block_table: Int32s, block_size: int, tile: int
) -> list[tuple[int, list[int]]]:
    """Chunks that several rows with few tokens have in the same blocks, and those rows.

    A chunk counts only when it lies wholly before each of the rows' tokens, and when the
    rows share every chunk before it.
    """
    rows = np.flatnonzero((starts >= CHUNK) & (num_tokens <= tile // 2)).tolist()
    if len(set(block_table[rows, 0].tolist())) == len(rows):
        return []
    found: list[tuple[int, list[int]]] = []
    groups, chunk = [rows], 0
    while groups:
        first, end = chunk * CHUNK // block_size, -(-(chunk + 1) * CHUNK // block_size)
        alike: dict[tuple[int, bytes], list[int]] = {}
        for number, members in enumerate(groups):
            for row in members:
                if starts[row] >= (chunk + 1) * CHUNK:
                    key = (number, block_table[row, first:end].tobytes())
                    alike.setdefault(key, []).append(row)
        groups = [members for members in alike.values() if len(members) > 1]
        found += [(chunk, members) for members in groups]
        chunk += 1
    return found


class _Tiles(NamedTuple):
    """Columns: one line for every tile of tokens."""

    first: Ints  # in the plan's `tokens`
    size: Ints  # tokens
    row: Ints
    begin: Ints  # chunks begin .. end - 1
    end: Ints
    width: Ints  # positions that the last token looks at
    is_shared: npt.NDArray[np.bool_]


def _row_tiles(starts: Ints, num_tokens: Ints, begin: Ints, tile: int) -> _Tiles:
    """Each row's tokens, `tile` at a time."""
    per_row = -(-num_tokens // tile)
    row = np.repeat(np.arange(len(starts)), per_row)
    within = (np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)) * tile
    count = np.minimum(tile, num_tokens[row] - within)
    length = starts[row] + within + count
    return _Tiles(
        first=(np.cumsum(num_tokens) - num_tokens)[row] + within,
        size=count,
        row=row,
        begin=begin[row],
        end=(length - 1) // CHUNK + 1,
        width=length - begin[row] * CHUNK,
        is_shared=np.zeros(len(row), dtype=np.bool_),
    )


def _shared_tiles(
    shared: list[tuple[int, list[int]]], num_tokens: Ints, offsets: Ints, tile: int, used: int
) -> tuple[_Tiles, Ints]:
    """A tile for every `tile` tokens of each shared chunk; and the tokens to list for them."""
    lines: list[tuple[int, int, int, int]] = []  # first, count, row, chunk
    listed: list[int] = []
    for chunk, rows in shared:
        tokens = [int(offsets[row]) + i for row in rows for i in range(num_tokens[row])]
        for i in range(0, len(tokens), tile):
            lines.append((used + len(listed) + i, min(tile, len(tokens) - i), rows[0], chunk))
        listed += tokens
    first, count, row, chunks = np.array(lines, dtype=np.int64).T
    return _Tiles(
        first=first,
        size=count,
        row=row,
        begin=chunks,
        end=chunks + 1,
        width=np.full(len(lines), CHUNK, dtype=np.int64),
        is_shared=np.ones(len(lines), dtype=np.bool_),
    ), np.array(listed, dtype=np.int64)


def _pieces(cost: Ints, chunks: Ints, num_kv_heads: int, threads: int) -> Ints:
    """In how many ranges of chunks each tile is cut: 1 unless it would keep others waiting."""
    if threads == 1:
        return np.ones_like(chunks)
    share = cost.sum() * num_kv_heads / (PIECES_PER_THREAD * threads)
    wanted = np.where(cost > 2 * share, np.ceil(cost / share), 1).astype(np.int64)
    return np.minimum(wanted, chunks)


def _units(
    tiles: _Tiles, cost: Ints, pieces: Ints, split: npt.NDArray[np.bool_], num_kv_heads: int
) -> tuple[Ints, Any]:
    """A unit for each tile, KV head and piece; and what each costs."""
    copies = pieces * num_kv_heads
    tile = np.repeat(np.arange(len(pieces)), copies)
    index = np.arange(len(tile)) - np.repeat(np.cumsum(copies) - copies, copies)
    kv_head, piece = np.divmod(index, pieces[tile])
    chunks = (tiles.end - tiles.begin)[tile]
    begin = chunks * piece // pieces[tile]
    end = chunks * (piece + 1) // pieces[tile]
    units = np.empty((len(tile), 7), dtype=np.int64)
    units[:, FIRST] = tiles.first[tile]
    units[:, COUNT] = tiles.size[tile]
    units[:, ROW] = tiles.row[tile]
    units[:, KV_HEAD] = kv_head
    units[:, FIRST_CHUNK] = tiles.begin[tile] + begin
    units[:, END_CHUNK] = tiles.begin[tile] + end
    units[:, SPLIT] = split[tile]
    return units, cost[tile] * (end - begin) / chunks


def _bounds(cost: Any, threads: int) -> Ints:
    """Cut a list of costs into `threads` runs of about the same sum."""
    total = np.cumsum(cost)
    bounds = np.zeros(threads + 1, dtype=np.int64)
    bounds[threads] = len(cost)
    if threads > 1 and len(cost):
        shares = total[-1] * np.arange(1, threads) / threads
        bounds[1:threads] = np.searchsorted(total - cost / 2, shares)
    return bounds
