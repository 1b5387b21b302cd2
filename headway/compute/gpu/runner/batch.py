"""From a flat step to tensors on the device."""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compute.batch.flat import FlatStep, Int32s, flatten
from headway.compute.gpu.attn.backend import RowLayout
from headway.compute.gpu.models.decoder import FlatTokens
from headway.core.messages.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step, complete but for the tokens that the step before it samples."""

    flat: FlatStep
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    layout: RowLayout

    @property
    def plan(self) -> StepPlan:
        """What it was made from."""
        return self.flat.plan

    def tokens(self, previous_draws: "array[int]") -> FlatTokens:
        """The batch's tokens, with pending ones taken from the draws of the step before."""
        return FlatTokens(
            token_ids=torch.from_numpy(self.flat.tokens(previous_draws)).to(self.positions.device),
            positions=self.positions,
            slots=self.slots,
        )

    def last_tokens(self, rows: "array[int]") -> Tensor:
        """Places in the flat batch of the rows' last tokens, on the device."""
        return torch.from_numpy(self.flat.last_tokens(rows)).to(self.positions.device)


def make_batch(
    plan: StepPlan, grid: Int32s, block_size: int, dtype: torch.dtype, device: torch.device
) -> StepBatch:
    """Copy all that is needed out of the plan and the grid [lines, width]."""
    flat = flatten(plan, grid, block_size)
    return StepBatch(
        flat=flat,
        positions=torch.from_numpy(flat.positions).to(device),
        slots=torch.from_numpy(flat.slots).to(device),
        layout=RowLayout(
            starts=flat.starts,
            num_tokens=flat.num_tokens,
            offsets=flat.offsets,
            block_table=flat.block_table,
            block_size=block_size,
            dtype=dtype,
            device=device,
        ),
    )
