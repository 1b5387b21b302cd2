"""A step as flat arrays: no padding, positions from the plan and from nothing else."""

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.core.messages.step import StepPlan

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """R rows of T tokens in all; row r holds tokens offsets[r] .. + num_tokens[r] - 1.

    Complete but for the tokens that the step before it samples.
    """

    plan: StepPlan
    token_ids: Ints  # [T]; those of pending rows are not known yet
    starts: Ints  # [R] position of a row's first token
    num_tokens: Ints  # [R], >= 1
    offsets: Ints  # [R]
    positions: Ints  # [T]
    slots: Ints  # [T] block * block_size + offset in the block: where K and V go
    block_table: Ints  # [R, M], valid up to the row's last position

    def tokens(self, previous_draws: "array[int]") -> Ints:
        """Input tokens [T], with pending ones taken from the draws of the step before."""
        if not self.plan.pending_rows:
            return self.token_ids
        rows = to_numpy(self.plan.pending_rows)
        places = self.offsets[rows] + self.num_tokens[rows] - 1
        token_ids = self.token_ids.copy()
        token_ids[places] = to_numpy(previous_draws)[to_numpy(self.plan.pending_from)]
        return token_ids

    def last_tokens(self, rows: "array[int]") -> Ints:
        """Places in the flat batch of the rows' last tokens."""
        chosen = to_numpy(rows)
        places: Ints = self.offsets[chosen] + self.num_tokens[chosen] - 1
        return places


def flatten(plan: StepPlan, grid: Int32s, block_size: int) -> FlatStep:
    """Copy all that is needed out of the plan and the grid [lines, width]."""
    starts, num_tokens = to_numpy(plan.starts), to_numpy(plan.num_tokens)
    offsets = np.cumsum(num_tokens) - num_tokens
    num_blocks = -(-int((starts + num_tokens).max()) // block_size)
    block_table = grid[to_numpy(plan.tables), :num_blocks].astype(np.int64)
    row = np.repeat(np.arange(len(starts)), num_tokens)
    positions = starts[row] + np.arange(len(row)) - offsets[row]
    slots = block_table[row, positions // block_size] * block_size + positions % block_size
    return FlatStep(
        plan=plan,
        token_ids=to_numpy(plan.token_ids),
        starts=starts,
        num_tokens=num_tokens,
        offsets=offsets,
        positions=positions,
        slots=slots,
        block_table=block_table,
    )


def to_numpy(column: "array[int]") -> Ints:
    """A plan's column as a copy."""
    return np.array(column, dtype=np.int64)
