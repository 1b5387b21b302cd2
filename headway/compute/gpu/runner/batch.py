"""From a plan to tensors. Positions come from the plan, every step, and from nothing else."""

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.compute.gpu.attn.backend import RowLayout
from headway.compute.gpu.models.decoder import FlatTokens
from headway.core.messages.step import StepPlan

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step, complete but for the tokens that the step before it samples."""

    plan: StepPlan
    token_ids: Ints  # [T], on the host; those of pending rows are not known yet
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    layout: RowLayout

    def tokens(self, previous_draws: "array[int]") -> FlatTokens:
        """The batch's tokens, with pending ones taken from the draws of the step before."""
        token_ids = self.token_ids
        if self.plan.pending_rows:
            drawn = to_numpy(previous_draws)
            token_ids = token_ids.copy()
            rows = to_numpy(self.plan.pending_rows)
            places = self.layout.offsets[rows] + self.layout.num_tokens[rows] - 1
            token_ids[places] = drawn[to_numpy(self.plan.pending_from)]
        return FlatTokens(
            token_ids=torch.from_numpy(token_ids).to(self.positions.device),
            positions=self.positions,
            slots=self.slots,
        )

    def last_tokens(self, rows: "array[int]") -> Tensor:
        """Places in the flat batch of the rows' last tokens, on the device."""
        chosen = to_numpy(rows)
        places = self.layout.offsets[chosen] + self.layout.num_tokens[chosen] - 1
        return torch.from_numpy(places).to(self.positions.device)


def make_batch(
    plan: StepPlan, grid: Int32s, block_size: int, dtype: torch.dtype, device: torch.device
) -> StepBatch:
    """Copy all that is needed out of the plan and the grid [lines, width]."""
    starts, num_tokens = to_numpy(plan.starts), to_numpy(plan.num_tokens)
    offsets = np.cumsum(num_tokens) - num_tokens
    num_blocks = -(-int((starts + num_tokens).max()) // block_size)
    block_table = grid[to_numpy(plan.tables), :num_blocks].astype(np.int64)
    row = np.repeat(np.arange(len(starts)), num_tokens)
    positions = starts[row] + np.arange(len(row)) - offsets[row]
    slots = block_table[row, positions // block_size] * block_size + positions % block_size
    return StepBatch(
        plan=plan,
        token_ids=to_numpy(plan.token_ids),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        layout=RowLayout(
            starts=starts,
            num_tokens=num_tokens,
            offsets=offsets,
            block_table=block_table,
            block_size=block_size,
            dtype=dtype,
            device=device,
        ),
    )


def to_numpy(column: "array[int]") -> Ints:
    """A plan's column as a copy."""
    return np.array(column, dtype=np.int64)
