from array import array

import numpy as np
import torch

from headway.compute.gpu.runner.batch import StepBatch, make_batch
from headway.core.messages.step import StepPlan

GRID = np.array([[5, 2, 9], [7, 0, 1], [3, 4, 6]], dtype=np.int32)


def batch_of(plan: StepPlan) -> StepBatch:
    return make_batch(plan, GRID, 4, torch.float32, torch.device("cpu"))


def mixed_plan() -> StepPlan:
    """Line 2 decodes at position 9; line 0 computes positions 3 to 6; line 1 decodes at 0."""
    return StepPlan(
        step=1,
        tables=array("i", [2, 0, 1]),
        starts=array("i", [9, 3, 0]),
        num_tokens=array("i", [1, 4, 1]),
        token_ids=array("i", [10, 20, 21, 22, 23, 0]),
        sequence_ids=(1, 2, 3),
        sample_rows=array("i", [1, 2]),
        pending_rows=array("i", [2, 0]),
        pending_from=array("i", [1, 0]),
    )


def test_rows_see_the_slots_of_all_their_positions() -> None:
    layout = batch_of(mixed_plan()).layout
    assert layout.row_slots(1).tolist() == [20, 21, 22, 23, 8, 9, 10]
    assert layout.row_slots(0).tolist() == [12, 13, 14, 15, 16, 17, 18, 19, 24, 25]


def test_pending_tokens_are_the_last_steps_draws_on_the_device() -> None:
    tokens = batch_of(mixed_plan()).tokens(array("i", [77, 88]))
    assert tokens.token_ids.tolist() == [77, 20, 21, 22, 23, 88]
    assert tokens.positions.tolist() == [9, 3, 4, 5, 6, 0]
