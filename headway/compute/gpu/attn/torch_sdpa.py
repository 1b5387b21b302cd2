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

from headway.compute.gpu.attn.backend import Ints, RowLayout, StepAttention

GROUP_SLOTS = 1 << 16  # slots gathered at once: 100 MB for 3 kv heads of 64 in float32
TILE_TOKENS = 512  # queries of a prefill row that are masked at once


class SdpaAttention:
    """The default on CPUs; works on any device."""

    name = "sdpa"

    def begin(self, layout: RowLayout) -> StepAttention:
        """Prepare one step."""
        is_decode = layout.num_tokens == 1
        decode = [_decode_group(layout, rows) for rows in _groups(layout, is_decode)]
        prefill = [_prefill_row(layout, int(row)) for row in np.flatnonzero(~is_decode)]
        return _SdpaStep(decode, prefill)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    tokens: Tensor  # [S] places in the flat batch
    is_whole: bool  # the batch is this group, in order
    slots: Tensor  # [S * L]
    mask: Tensor | None  # [S, 1, 1, L], 0 or -inf; None when all rows are of one length
    num_rows: int


@dataclass(frozen=True, slots=True)
class _Tile:
    begin: int  # within the row
    end: int
    mask: Tensor | None  # [end - begin, reach], 0 or -inf; None: plainly causal from 0


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    offset: int
    start: int
    slots: Tensor  # [start + num_tokens]
    tiles: tuple[_Tile, ...]


class _SdpaStep:
    def __init__(self, decode: list[_DecodeGroup], prefill: list[_PrefillRow]) -> None:
        self._decode = decode
        self._prefill = prefill

    def attend(self, q: Tensor, kv: Tensor) -> Tensor:
        if len(self._decode) == 1 and self._decode[0].is_whole:
            return _attend_decode(q, kv, self._decode[0])
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in self._decode:
            rows = q.index_select(0, group.tokens)
            out.index_copy_(0, group.tokens, _attend_decode(rows, kv, group))
        for row in self._prefill:
            _attend_prefill(q, kv, row, out)
        return out


def _attend_decode(q: Tensor, kv: Tensor, group: _DecodeGroup) -> Tensor:
    """The heads that share a kv head stand where SDPA has its queries: nothing is repeated."""
    num_kv_heads = kv.shape[2]
    gathered = kv.index_select(0, group.slots).unflatten(0, (group.num_rows, -1))
    k = gathered[:, :, 0].transpose(1, 2)  # [S, G, L, D]
    v = gathered[:, :, 1].transpose(1, 2)
    query = q.unflatten(1, (num_kv_heads, -1))  # [S, G, H / G, D]
    mixed = functional.scaled_dot_product_attention(query, k, v, attn_mask=group.mask)
    return mixed.flatten(1, 2)


def _attend_prefill(q: Tensor, kv: Tensor, row: _PrefillRow, out: Tensor) -> None:
    num_kv_heads = kv.shape[2]
    gathered = kv.index_select(0, row.slots)
    for tile in row.tiles:
        tokens = slice(row.offset + tile.begin, row.offset + tile.end)
        query = q[tokens].unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)  # [G, H/G, t, D]
        reach = gathered[: row.start + tile.end]
        # [G, L, 2, D] seen as [G, H/G, L, D] without a copy.
        k = reach[:, 0].transpose(0, 1).unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        v = reach[:, 1].transpose(0, 1).unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        mixed = functional.scaled_dot_product_attention(
            query, k, v, attn_mask=tile.mask, is_causal=tile.mask is None
        )
        out[tokens] = mixed.permute(2, 0, 1, 3).flatten(1, 2)


def _groups(layout: RowLayout, is_decode: np.ndarray) -> Iterator[Ints]:
    """Decode rows in groups of similar length and bounded size; one group when it fits."""
    rows = np.flatnonzero(is_decode)
    if not len(rows):
        return
    lengths = layout.starts[rows] + 1
    longest = int(lengths.max())
    if 2 * int(lengths.min()) >= longest and len(rows) * longest <= GROUP_SLOTS:
        yield rows
        return
    rows = rows[np.argsort(-lengths, kind="stable")]
    begin = 0
    while begin < len(rows):
        longest = int(layout.starts[rows[begin]]) + 1
        end = begin + 1
        while (
            end < len(rows)
            and (end + 1 - begin) * longest <= GROUP_SLOTS
            and 2 * (int(layout.starts[rows[end]]) + 1) >= longest
        ):
            end += 1
        yield rows[begin:end]
        begin = end


def _decode_group(layout: RowLayout, rows: Ints) -> _DecodeGroup:
    lengths = layout.starts[rows] + 1
    longest = int(lengths.max())
    positions = np.arange(longest)
    is_padding = positions >= lengths[:, None]  # [S, L]
    reach = np.where(is_padding, 0, positions)
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


def _prefill_row(layout: RowLayout, row: int) -> _PrefillRow:
    start, count = int(layout.starts[row]), int(layout.num_tokens[row])
    if start == 0:
        tiles: tuple[_Tile, ...] = (_Tile(0, count, None),)
    else:
        tiles = tuple(
            _tile(layout, start, begin, min(begin + TILE_TOKENS, count))
            for begin in range(0, count, TILE_TOKENS)
        )
    slots = _to_device(layout.row_slots(row), layout)
    return _PrefillRow(int(layout.offsets[row]), start, slots, tiles)


def _tile(layout: RowLayout, start: int, begin: int, end: int) -> _Tile:
    queries = np.arange(start + begin, start + end)
    is_future = np.arange(start + end) > queries[:, None]
    return _Tile(begin, end, _mask(is_future, layout))


def _mask(is_hidden: np.ndarray, layout: RowLayout) -> Tensor:
    mask = torch.zeros(is_hidden.shape, dtype=layout.dtype)
    mask.masked_fill_(torch.from_numpy(is_hidden), float("-inf"))
    return mask.to(layout.device)


def _to_device(values: Ints, layout: RowLayout) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(layout.device)
