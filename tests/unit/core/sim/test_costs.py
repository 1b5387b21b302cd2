"""Costs of steps: the table between its values, and recorded times."""

from array import array
from dataclasses import replace

import pytest

from headway.core.cost.work import StepWork
from headway.core.messages.step import StepPlan
from headway.core.sim.costs import (
    RecordedSteps,
    StepTable,
    measured,
    work_of,
)

TRUTH = StepTable(
    rows=((1, 0.010), (4, 0.016), (16, 0.020)),
    decode_pair_s=2e-7,
    prefill_token_s=3e-4,
    prefill_pair_s=5e-8,
)


def plan(*rows: tuple[int, int]) -> StepPlan:
    starts, nums = zip(*rows, strict=True)
    return StepPlan(
        step=1,
        tables=array("i", range(len(rows))),
        starts=array("i", starts),
        num_tokens=array("i", nums),
        token_ids=array("i", bytes(4 * sum(nums))),
        sequence_ids=tuple(range(len(rows))),
    )


def test_the_work_of_decodes_is_a_pair_for_each_position_and_its_own() -> None:
    assert work_of(plan((9, 1), (0, 1))) == StepWork(2, 11, 0, 0)


@pytest.mark.spec("E1")
def test_the_work_of_a_mixed_step_keeps_prompts_apart() -> None:
    assert work_of(plan((9, 1), (16, 3))) == StepWork(1, 10, 3, 17 + 18 + 19)


def test_what_decodes_share_is_at_most_what_they_look_at() -> None:
    both = replace(plan((40, 1), (40, 1)), num_shared=32)
    assert work_of(both) == StepWork(2, 82, decode_shared=32)
    mixed = replace(plan((9, 1), (16, 3)), num_shared=16)
    assert work_of(mixed) == StepWork(1, 10, 3, 17 + 18 + 19, decode_shared=10)


def test_the_table_is_interpolated_and_goes_on_straight() -> None:
    def rows(count: int) -> float:
        return TRUTH.seconds(StepWork(count))

    assert rows(0) == rows(1) == 0.010
    assert rows(2) == pytest.approx(0.012)
    assert rows(10) == pytest.approx(0.018)
    assert rows(28) == pytest.approx(0.024)


def test_a_prompts_token_counts_as_part_of_a_row_where_the_table_says_so() -> None:
    table = StepTable(
        rows=((1, 0.010), (101, 0.110)),
        token_rows=0.5,
        decode_pair_s=0.0,
        prefill_token_s=0.0,
        prefill_pair_s=0.0,
    )
    assert table.seconds(StepWork(11, 0, 100)) == pytest.approx(0.010 + 0.001 * 60)
    assert table.seconds(StepWork(0, 0, 400)) == pytest.approx(0.010 + 0.001 * 199), "goes on"


def test_what_rows_share_costs_only_the_arithmetic() -> None:
    alone, together = StepWork(4, 4000), StepWork(4, 4000, decode_shared=3000)
    saved = 3000 * (TRUTH.decode_pair_s - TRUTH.prefill_pair_s)
    assert TRUTH.seconds(alone) - TRUTH.seconds(together) == pytest.approx(saved)


def test_recorded_steps_are_taken_in_order_and_differences_are_counted() -> None:
    first, second = StepWork(1, 10), StepWork(2, 30)
    recorded = RecordedSteps([measured(first, 0.5), measured(second, 0.75)])
    assert recorded.seconds(first) == 0.5
    assert recorded.mismatches == 0
    assert recorded.seconds(first) == 0.75
    assert recorded.mismatches == 1
    assert recorded.seconds(first) == 0.75, "past the end it goes on with the last"
    assert (recorded.num_taken, recorded.mismatches) == (3, 2)
