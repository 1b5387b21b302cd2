"""What an attention backend does."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Where the rows of a step lie, on the host; R rows of T tokens in all.

    Row r holds tokens offsets[r] .. offsets[r] + num_tokens[r] - 1 of the flat batch, at
    positions starts[r] onwards; each attends to its own position and all before it.
    """

    starts: Ints  # [R]
    num_tokens: Ints  # [R], >= 1
    offsets: Ints  # [R]
    block_table: Ints  # [R, M], valid up to the row's last position
    block_size: int
    dtype: torch.dtype  # of q and of the pool
    device: torch.device

    def row_slots(self, row: int, first: int = 0) -> Ints:
        """Slots of the positions from `first` to the row's last, in order."""
        positions = np.arange(first, int(self.starts[row] + self.num_tokens[row]))
        blocks = self.block_table[row, positions // self.block_size]
        slots: Ints = blocks * self.block_size + positions % self.block_size
        return slots


def first_in_reach(position: int, window: int) -> int:
    """The first position that a token sees; a window of 0 is all before it."""
    return max(0, position - window + 1) if window else 0


class StepAttention(Protocol):
    """Attention of one step, with everything prepared that its layers share."""

    def attend(self, q: Tensor, kv: Tensor, *, window: int, scale: float) -> Tensor:
        """Attend to what is in the pool; the step's own K and V are already written.

        q        [T, H, D]
        kv       [slots, 2, G, D]  one layer's pool, K is 0 and V is 1; H % G == 0
        window   how many positions a token sees, its own the last; 0: all before it
        scale    what scores are multiplied by
        returns  [T, H, D]         dtype of q

        Query head h reads kv head h // (H / G). Slots that do not belong to the row are
        never read: they may hold anything, NaN included.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention over a paged pool."""

    name: str

    def begin(self, layout: RowLayout) -> StepAttention:
        """Prepare one step."""
        ...
