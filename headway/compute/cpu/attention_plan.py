"""Cuts the attention of one step into units of work; done once, used by every layer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
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
    """Units in the order in which threads claim them, and where split sums go.

    units          [U, 7] int64  FIRST and COUNT of the unit's tokens in `tokens`, ROW of the
                   block table, KV_HEAD, chunks FIRST_CHUNK .. END_CHUNK - 1, and SPLIT: 1 when
                   each chunk's sum is written to the partial sums, to be merged afterwards
    tokens         [N] int32   tokens of the flat batch; those of a unit ascend in position
    positions      [T] int32   of each token of the batch
    partial_base   [T] int64   place of a split token's partial sums, in floats; -1: not split
    split_tokens   [S] int32   tokens to merge; an item is one of them and one KV head
    merge_bounds   [threads + 1] int64  behind a barrier, thread t does merge items
                   merge_bounds[t] .. [t + 1] - 1
    partial_floats             size of the partial sums of one layer (0: nothing to merge)
    """

    units: Ints
    tokens: Int32s
    positions: Int32s
    partial_base: Ints
    split_tokens: Int32s
    merge_bounds: Ints
    partial_floats: int


def scratch_floats(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Floats of scratch that one thread needs in `attend`; a multiple of 16."""
    rows = scratch_rows(num_heads // num_kv_heads)
    expanded = CHUNK * head_dim // 2  # K or V of a chunk as bfloat16
    return rows * (3 * head_dim + SCORE_FLOATS + 4) + expanded + 3 * 2 * (CHUNK // 16)


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
    tokens, shared_tiles = list_tokens(shared, starts, num_tokens, tile)
    tiles = cut_rows(starts, num_tokens, begin, shared_tiles, tile)
    units, cost = cut_tiles(tiles, group, shape.num_kv_heads, threads)
    # Largest first: what is claimed last decides how long the threads wait for each other.
    units = units[np.argsort(-cost, kind="stable")]
    positions = np.empty(num_tokens.sum(), dtype=np.int32)
    chunk_floats = num_heads * (shape.head_dim + PARTIAL_EXTRA)
    partial_base, sizes = place_partials(starts, num_tokens, tokens, units, chunk_floats, positions)
    split_tokens = np.flatnonzero(sizes)
    return AttentionPlan(
        units=units,
        tokens=tokens,
        positions=positions,
        partial_base=partial_base,
        split_tokens=split_tokens.astype(np.int32),
        merge_bounds=even_bounds(np.repeat(sizes[split_tokens], shape.num_kv_heads), threads),
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


def list_tokens(
    shared: list[tuple[int, list[int]]], starts: Ints, num_tokens: Ints, tile: int
) -> tuple[Int32s, Ints]:
    """The plan's `tokens`: all in order, then those of each shared chunk by their positions.

    returns  also [S, 4]: tiles of the shared chunks, as (first, size, row, chunk)
    """
    ordered = np.arange(num_tokens.sum(), dtype=np.int32)
    if not shared:
        return ordered, np.empty((0, 4), dtype=np.int64)
    offsets = (np.cumsum(num_tokens) - num_tokens).tolist()
    counts, begins = num_tokens.tolist(), starts.tolist()
    listed: list[int] = []
    tiles: list[tuple[int, int, int, int]] = []
    for chunk, rows in shared:
        placed = [(begins[row] + i, offsets[row] + i) for row in rows for i in range(counts[row])]
        tokens = [token for _, token in sorted(placed)]
        for i in range(0, len(tokens), tile):
            first = len(ordered) + len(listed) + i
            tiles.append((first, min(tile, len(tokens) - i), rows[0], chunk))
        listed += tokens
    together = np.concatenate((ordered, np.array(listed, dtype=np.int32)))
    return together, np.array(tiles, dtype=np.int64)


@kernel
def cut_rows(starts: Any, num_tokens: Any, begin: Any, shared_tiles: Any, tile: int) -> Any:
    """Tiles as [N, 7]: first, size, row, begin, end, width, split.

    Chunks begin .. end - 1; width is how many positions the last token looks at in them;
    split is 1 where other tiles do other chunks of the same tokens. Shared tiles come first.
    """
    num_shared = len(shared_tiles)
    total = num_shared
    for row in range(len(starts)):
        total += (num_tokens[row] + tile - 1) // tile
    tiles = np.empty((total, 7), dtype=np.int64)
    for i in range(num_shared):
        tiles[i, 0], tiles[i, 1], tiles[i, 2] = (
            shared_tiles[i, 0],
            shared_tiles[i, 1],
            shared_tiles[i, 2],
        )
        chunk = shared_tiles[i, 3]
        tiles[i, 3], tiles[i, 4], tiles[i, 5], tiles[i, 6] = chunk, chunk + 1, CHUNK, 1
    done, first = num_shared, 0
    for row in range(len(starts)):
        for within in range(0, num_tokens[row], tile):
            size = min(tile, num_tokens[row] - within)
            length = starts[row] + within + size
            tiles[done, 0], tiles[done, 1], tiles[done, 2] = first + within, size, row
            tiles[done, 3], tiles[done, 4] = begin[row], (length - 1) // CHUNK + 1
            tiles[done, 5], tiles[done, 6] = length - begin[row] * CHUNK, begin[row] > 0
            done += 1
        first += num_tokens[row]
    return tiles


@kernel
def tile_cost(tiles: Any, i: int, group: int) -> float:
    """Query rows times positions, and something for the way there."""
    return float(tiles[i, 1] * group * tiles[i, 5] + UNIT_OVERHEAD)


@kernel
def cut_tiles(tiles: Any, group: int, num_kv_heads: int, threads: int) -> Any:
    """The plan's units, one for each tile, KV head and range of chunks; and what each costs.

    A tile is cut into ranges of chunks where it would keep the other threads waiting.
    """
    total = 0.0
    for i in range(len(tiles)):
        total += tile_cost(tiles, i, group)
    share = total * num_kv_heads / (PIECES_PER_THREAD * threads)
    pieces = np.empty(len(tiles), dtype=np.int64)
    num_units = 0
    for i in range(len(tiles)):
        cost = tile_cost(tiles, i, group)
        pieces[i] = 1
        if threads > 1 and cost > 2 * share:
            pieces[i] = min(tiles[i, 4] - tiles[i, 3], int(cost / share) + 1)
        num_units += pieces[i] * num_kv_heads
    units = np.empty((num_units, 7), dtype=np.int64)
    unit_cost = np.empty(num_units, dtype=np.float64)
    done = 0
    for i in range(len(tiles)):
        begin, chunks = tiles[i, 3], tiles[i, 4] - tiles[i, 3]
        for kv_head in range(num_kv_heads):
            for piece in range(pieces[i]):
                first = chunks * piece // pieces[i]
                end = chunks * (piece + 1) // pieces[i]
                units[done, FIRST], units[done, COUNT] = tiles[i, 0], tiles[i, 1]
                units[done, ROW], units[done, KV_HEAD] = tiles[i, 2], kv_head
                units[done, FIRST_CHUNK], units[done, END_CHUNK] = begin + first, begin + end
                units[done, SPLIT] = tiles[i, 6] or pieces[i] > 1
                unit_cost[done] = tile_cost(tiles, i, group) * (end - first) / chunks
                done += 1
    return units, unit_cost


@kernel
def place_partials(
    starts: Any, num_tokens: Any, tokens: Any, units: Any, chunk_floats: int, positions: Any
) -> Any:
    """Fill the plan's positions; returns its partial_base, and each token's floats there.

    chunk_floats  floats of a chunk's partial sums, all heads of one token
    """
    base = np.empty(len(positions), dtype=np.int64)
    sizes = np.empty(len(positions), dtype=np.int64)
    token = 0
    for row in range(len(starts)):
        for i in range(num_tokens[row]):
            positions[token] = starts[row] + i
            base[token], sizes[token] = -1, 0
            token += 1
    for u in range(len(units)):
        if units[u, SPLIT]:
            for i in range(units[u, FIRST], units[u, FIRST] + units[u, COUNT]):
                token = tokens[i]
                sizes[token] = (positions[token] // CHUNK + 1) * chunk_floats
    used = 0
    for token in range(len(positions)):
        if sizes[token] > 0:
            base[token] = used
            used += sizes[token]
    return base, sizes


def even_bounds(cost: npt.NDArray[Any], threads: int) -> Ints:
    """Cut a list of costs into `threads` runs of about the same sum."""
    bounds = np.zeros(threads + 1, dtype=np.int64)
    bounds[threads] = len(cost)
    if threads > 1 and len(cost):
        total = np.cumsum(cost)
        shares = total[-1] * np.arange(1, threads) / threads
        bounds[1:threads] = np.searchsorted(total - cost / 2, shares)
    return bounds
