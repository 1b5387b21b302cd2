"""Attention row by row and in float32: clear, not fast."""

import torch
from torch import Tensor

from headway.compute.gpu.attn.backend import RowLayout, StepAttention


class ReferenceAttention:
    """What every other backend is compared with."""

    name = "reference"

    def begin(self, layout: RowLayout) -> StepAttention:
        """Prepare one step."""
        return _ReferenceStep(layout)


class _ReferenceStep:
    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout

    def attend(self, q: Tensor, kv: Tensor, *, window: int, scale: float) -> Tensor:
        """Source: Kwon et al. 2023 (PagedAttention), section 4.1."""
        layout, groups = self._layout, kv.shape[2]
        out = torch.empty_like(q)
        for row, (start, count, offset) in enumerate(
            zip(layout.starts, layout.num_tokens, layout.offsets, strict=True)
        ):
            slots = torch.from_numpy(layout.row_slots(row)).to(kv.device)
            k, v = kv[slots].float().unbind(1)  # [L, G, D]
            tokens = slice(int(offset), int(offset + count))
            query = q[tokens].float().unflatten(1, (groups, -1))  # [t, G, H / G, D]
            scores = torch.einsum("tghd,lgd->tghl", query, k) * scale
            reach = torch.arange(int(count), device=kv.device) + int(start)
            places = torch.arange(len(slots), device=kv.device)
            hidden = places > reach[:, None]  # [t, L]
            if window:
                hidden |= places <= reach[:, None] - window
            scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
            mixed = torch.einsum("tghl,lgd->tghd", scores.softmax(-1), v)
            out[tokens] = mixed.flatten(1, 2).to(q.dtype)
        return out
