"""Attention by torch's scaled_dot_product_attention over gathered K and V.

Decode rows are gathered together, padded to the longest of a group; a row that computes
several tokens (prefill) is gathered alone. Padding repeats the row's own first slot, so
that only slots of the row itself are ever read, and is masked.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from headway.compute.gpu.attn.backend import Ints, RowLayout, StepAttention, first_in_reach

GROUP_SLOTS = 1 << 16  # slots gathered at once: 100 MB for 3 kv heads of 64 in float32
TILE_TOKENS = 512  # queries of a prefill row that are masked at once


class SdpaAttention:
    """The default on CPUs; works on any device."""

    name = "sdpa"

    def begin(self, layout: RowLayout) -> StepAttention:
        """Prepare one step."""
        return _SdpaStep(layout)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    tokens: Tensor  # [S] places in the flat batch
    is_whole: bool  # the batch is this group, in order
    slots: Tensor  # [S * L], of the last L positions or as many as the window has
    mask: Tensor | None  # [S, 1, 1, L], 0 or -inf; None when all rows are of one length
    num_rows: int


@dataclass(frozen=True, slots=True)
class _Tile:
    begin: int  # within the row
    end: int
    first: int  # of the gathered slots, where its reach begins
    last: int  # and one past its end
    mask: Tensor | None  # [end - begin, last - first], 0 or -inf; None: plainly causal


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    offset: int
    slots: Tensor  # all that any of its tokens sees
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the layers of one window share in a step."""

    decode: tuple[_DecodeGroup, ...]
    prefill: tuple[_PrefillRow, ...]


class _SdpaStep:
    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._prepared: dict[int, _Prepared] = {}  # by window

    def attend(self, q: Tensor, kv: Tensor, *, window: int, scale: float) -> Tensor:
        if window not in self._prepared:
            self._prepared[window] = _prepare(self._layout, window)
        prepared = self._prepared[window]
        if len(prepared.decode) == 1 and prepared.decode[0].is_whole:
            return _attend_decode(q, kv, prepared.decode[0], scale)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in prepared.decode:
            rows = q.index_select(0, group.tokens)
            out.index_copy_(0, group.tokens, _attend_decode(rows, kv, group, scale))
        for row in prepared.prefill:
            _attend_prefill(q, kv, row, out, scale)
        return out


def _attend_decode(q: Tensor, kv: Tensor, group: _DecodeGroup, scale: float) -> Tensor:
    """The heads that share a kv head stand where SDPA has its queries: nothing is repeated."""
    num_kv_heads = kv.shape[2]
    gathered = kv.index_select(0, group.slots).unflatten(0, (group.num_rows, -1))
    k = gathered[:, :, 0].transpose(1, 2)  # [S, G, L, D]
    v = gathered[:, :, 1].transpose(1, 2)
    query = q.unflatten(1, (num_kv_heads, -1))  # [S, G, H / G, D]
    mixed = functional.scaled_dot_product_attention(query, k, v, attn_mask=group.mask, scale=scale)
    return mixed.flatten(1, 2)


def _attend_prefill(q: Tensor, kv: Tensor, row: _PrefillRow, out: Tensor, scale: float) -> None:
    num_kv_heads = kv.shape[2]
    gathered = kv.index_select(0, row.slots)
    for tile in row.tiles:
        tokens = slice(row.offset + tile.begin, row.offset + tile.end)
        query = q[tokens].unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)  # [G, H/G, t, D]
        reach = gathered[tile.first : tile.last]
        # [G, L, 2, D] seen as [G, H/G, L, D] without a copy.
        k = reach[:, 0].transpose(0, 1).unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        v = reach[:, 1].transpose(0, 1).unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        mixed = functional.scaled_dot_product_attention(
            query, k, v, attn_mask=tile.mask, is_causal=tile.mask is None, scale=scale
        )
        out[tokens] = mixed.permute(2, 0, 1, 3).flatten(1, 2)


def _prepare(layout: RowLayout, window: int) -> _Prepared:
    is_decode = layout.num_tokens == 1
    lengths = layout.starts + 1  # of what a decode row sees
    lengths = np.minimum(lengths, window) if window else lengths
    return _Prepared(
        decode=tuple(
            _decode_group(layout, rows, lengths[rows])
            for rows in _groups(np.flatnonzero(is_decode), lengths)
        ),
        prefill=tuple(_prefill_row(layout, int(row), window) for row in np.flatnonzero(~is_decode)),
    )


def _groups(rows: Ints, lengths: Ints) -> Iterator[Ints]:
    """Rows in groups of similar length and bounded size; one group when it fits.

    lengths  of all rows of the step
    """
    if not len(rows):
        return
    longest = int(lengths[rows].max())
    if 2 * int(lengths[rows].min()) >= longest and len(rows) * longest <= GROUP_SLOTS:
        yield rows
        return
    rows = rows[np.argsort(-lengths[rows], kind="stable")]
    begin = 0
    while begin < len(rows):
        longest = int(lengths[rows[begin]])
        end = begin + 1
        while (
            end < len(rows)
            and (end + 1 - begin) * longest <= GROUP_SLOTS
            and 2 * int(lengths[rows[end]]) >= longest
        ):
            end += 1
        yield rows[begin:end]
        begin = end


def _decode_group(layout: RowLayout, rows: Ints, lengths: Ints) -> _DecodeGroup:
    steps = np.arange(int(lengths.max()))
    is_padding = steps >= lengths[:, None]  # [S, L]
    first = layout.starts[rows] + 1 - lengths
    reach = first[:, None] + np.where(is_padding, 0, steps)
    blocks = np.take_along_axis(layout.block_table[rows], reach // layout.block_size, axis=1)
    slots = blocks * layout.block_size + reach % layout.block_size
    is_whole = len(rows) == len(layout.starts) and bool((np.diff(rows) > 0).all())
    return _DecodeGroup(
        tokens=_to_device(layout.offsets[rows], layout),
        is_whole=is_whole,
        slots=_to_device(slots.reshape(-1), layout),
        mask=_mask(is_padding, layout)[:, None, None, :] if is_padding.any() else None,
        num_rows=len(rows),
    )


def _prefill_row(layout: RowLayout, row: int, window: int) -> _PrefillRow:
    start, count = int(layout.starts[row]), int(layout.num_tokens[row])
    gathered = first_in_reach(start, window)
    if start == 0 and (not window or count <= window):
        tiles: tuple[_Tile, ...] = (_Tile(0, count, 0, count, None),)
    else:
        tiles = tuple(
            _tile(layout, (start, begin, min(begin + TILE_TOKENS, count)), window, gathered)
            for begin in range(0, count, TILE_TOKENS)
        )
    slots = _to_device(layout.row_slots(row, gathered), layout)
    return _PrefillRow(int(layout.offsets[row]), slots, tiles)


def _tile(layout: RowLayout, at: tuple[int, int, int], window: int, gathered: int) -> _Tile:
    """A tile of a row whose slots are gathered from one position on.

    at  the row's first position; where the tile begins and ends within the row
    """
    start, begin, end = at
    queries = np.arange(start + begin, start + end)[:, None]
    first = first_in_reach(start + begin, window)
    places = np.arange(first, start + end)
    is_hidden = places > queries
    if window:
        is_hidden |= places <= queries - window
    return _Tile(begin, end, first - gathered, start + end - gathered, _mask(is_hidden, layout))


def _mask(is_hidden: np.ndarray, layout: RowLayout) -> Tensor:
    mask = torch.zeros(is_hidden.shape, dtype=layout.dtype)
    mask.masked_fill_(torch.from_numpy(is_hidden), float("-inf"))
    return mask.to(layout.device)


def _to_device(values: Ints, layout: RowLayout) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(layout.device)
