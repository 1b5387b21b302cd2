from array import array

import numpy as np

from headway.compute.batch.flat import FlatStep, flatten
from headway.core.messages.step import StepPlan

GRID = np.array([[5, 2, 9], [7, 0, 1], [3, 4, 6]], dtype=np.int32)


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


def flat() -> FlatStep:
    return flatten(mixed_plan(), GRID, 4)


def test_positions_and_slots_come_from_the_plan_and_the_grid() -> None:
    assert flat().positions.tolist() == [9, 3, 4, 5, 6, 0]
    assert flat().slots.tolist() == [6 * 4 + 1, 5 * 4 + 3, 2 * 4, 2 * 4 + 1, 2 * 4 + 2, 7 * 4]


def test_pending_tokens_are_the_last_steps_draws() -> None:
    assert flat().tokens(array("i", [77, 88])).tolist() == [77, 20, 21, 22, 23, 88]


def test_sampled_rows_are_found_by_their_last_token() -> None:
    assert flat().last_tokens(mixed_plan().sample_rows).tolist() == [4, 5]


def test_nothing_of_the_plan_or_grid_is_kept_by_reference() -> None:
    plan, grid = mixed_plan(), GRID.copy()
    step = flatten(plan, grid, 4)
    slots = step.slots.tolist()
    grid[:] = 0
    for column in (plan.starts, plan.num_tokens, plan.token_ids):
        column[0] = 1
    assert step.slots.tolist() == slots
    assert step.positions.tolist() == [9, 3, 4, 5, 6, 0]
