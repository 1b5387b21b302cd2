"""Costs of steps: the fit, the table between its values, and recorded times."""

from array import array
from random import Random

import pytest

from headway.core.cost.work import StepWork
from headway.core.messages.step import StepPlan
from headway.core.sim.costs import (
    MeasuredStep,
    RecordedSteps,
    SpreadCost,
    StepTable,
    fit,
    measured,
    relative_error,
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


def sample(rng: Random) -> MeasuredStep:
    work = StepWork()
    for _ in range(rng.choice((1, 2, 4, 8, 16))):
        work.add(rng.randrange(2000), 1)
    if rng.random() < 0.3:
        work.add(rng.randrange(1000), rng.randrange(2, 256))
    return measured(work, TRUTH.seconds(work))


def test_the_work_of_decodes_is_a_pair_for_each_position_and_its_own() -> None:
    assert work_of(plan((9, 1), (0, 1))) == StepWork(2, 11, 0, 0)


@pytest.mark.spec("E1")
def test_the_work_of_a_mixed_step_keeps_prompts_apart() -> None:
    assert work_of(plan((9, 1), (16, 3))) == StepWork(1, 10, 3, 17 + 18 + 19)


def test_the_table_is_interpolated_and_goes_on_straight() -> None:
    def rows(count: int) -> float:
        return TRUTH.seconds(StepWork(count))

    assert rows(0) == rows(1) == 0.010
    assert rows(2) == pytest.approx(0.012)
    assert rows(10) == pytest.approx(0.018)
    assert rows(28) == pytest.approx(0.024)


def test_a_fit_finds_the_cost_that_the_steps_came_from() -> None:
    rng = Random(1)
    found = fit([sample(rng) for _ in range(400)])
    for _ in range(50):
        assert abs(relative_error(found, sample(rng))) < 0.01


def test_disturbed_steps_do_not_move_the_fit() -> None:
    rng = Random(2)
    steps = [sample(rng) for _ in range(400)]
    noisy = [
        measured(
            step.work, step.seconds * (rng.uniform(3, 9) if i % 25 == 0 else rng.gauss(1, 0.01))
        )
        for i, step in enumerate(steps)
    ]
    found = fit(noisy)
    errors = [abs(relative_error(found, step)) for step in steps]
    assert sum(errors) / len(errors) < 0.02


def test_steps_are_spread_as_the_measured_ones_were() -> None:
    work, slow = StepWork(1, 100), StepWork(1, 100, 64, 4000)
    times = [1.0, 1.0, 1.0, 2.0] * 50
    steps = [measured(work, 0.01 * each) for each in times]
    steps += [measured(slow, 0.05) for _ in range(50)]
    found = fit(steps)
    assert found.seconds(work) == pytest.approx(0.01, rel=0.01)
    assert found.prefill_spread == (1.0,) * 50
    spread = SpreadCost(found, Random(1))
    drawn = sorted(spread.seconds(work) for _ in range(2000))
    assert drawn[0] == pytest.approx(0.01, rel=0.01)
    assert drawn[-1] == pytest.approx(0.02, rel=0.01)
    assert 0.2 < sum(each > 0.015 for each in drawn) / 2000 < 0.3
    assert SpreadCost(TRUTH, Random(1)).seconds(work) == TRUTH.seconds(work), "none is known"


def test_a_fit_needs_a_step() -> None:
    with pytest.raises(ValueError, match="no step"):
        fit([])


def test_recorded_steps_are_taken_in_order_and_differences_are_counted() -> None:
    first, second = StepWork(1, 10), StepWork(2, 30)
    recorded = RecordedSteps([measured(first, 0.5), measured(second, 0.75)])
    assert recorded.seconds(first) == 0.5
    assert recorded.mismatches == 0
    assert recorded.seconds(first) == 0.75
    assert recorded.mismatches == 1
    assert recorded.seconds(first) == 0.75, "past the end it goes on with the last"
    assert (recorded.num_taken, recorded.mismatches) == (3, 2)
