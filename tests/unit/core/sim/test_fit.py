"""Fitting a table of step costs."""

from random import Random

import pytest

from headway.core.cost.arithmetic import Arithmetic
from headway.core.cost.work import StepWork
from headway.core.sim.costs import MeasuredStep, SpreadCost, StepTable, measured
from headway.core.sim.fit import fit, relative_error

MODEL = Arithmetic(pairs_a_token=1500.0, head_tokens=0.25)
TRUTH = StepTable(
    rows=((1, 0.010), (4, 0.011), (16, 0.014), (256, 0.122)),
    token_rows=0.8,
    decode_pair_s=1e-6,
    prefill_token_s=0.0,
    prefill_pair_s=2.4e-7,
)


def sample(rng: Random, truth: StepTable = TRUTH, longest: int = 4000) -> MeasuredStep:
    work = StepWork()
    for _ in range(rng.choice((1, 2, 4, 8, 16))):
        work.add(rng.randrange(longest), 1)
    if rng.random() < 0.3:
        work.add(rng.randrange(longest), rng.randrange(2, 256))
    return measured(work, truth.seconds(work))


def worst_error(found: StepTable, steps: list[MeasuredStep]) -> float:
    return max(abs(relative_error(found, step)) for step in steps)


def test_a_fit_finds_the_cost_that_the_steps_came_from() -> None:
    rng = Random(1)
    found = fit([sample(rng) for _ in range(400)], MODEL)
    assert worst_error(found, [sample(rng) for _ in range(50)]) < 0.02


def test_steps_of_long_prompts_are_believed_against_what_the_shape_says() -> None:
    rng = Random(2)
    found = fit([sample(rng) for _ in range(400)], MODEL._replace(pairs_a_token=3000.0))
    assert found.prefill_pair_s == pytest.approx(TRUTH.prefill_pair_s, rel=0.2)


def test_short_prompts_leave_the_cost_of_a_pair_to_the_models_shape() -> None:
    """Chunks at the beginning of a prompt, some percent off: as many pairs as tokens."""
    rng = Random(3)
    steps = []
    for _ in range(100):
        work = StepWork(rng.randrange(1, 16))
        work.add(0, rng.choice((128, 192, 240)))
        steps.append(measured(work, TRUTH.seconds(work) * rng.uniform(0.93, 1.07)))
    found = fit(steps, MODEL)
    token = found.token_rows * (TRUTH.rows[3][1] - TRUTH.rows[2][1]) / (256 - 16)
    assert found.prefill_pair_s == pytest.approx(token / 1500, rel=0.25)
    far = StepWork()
    far.add(4000, 200)
    assert found.seconds(far) == pytest.approx(TRUTH.seconds(far), rel=0.25)


def test_numbers_of_rows_that_were_not_seen_lie_on_the_line_between_those_that_were() -> None:
    rng = Random(4)
    steps = [sample(rng) for _ in range(300)]
    found = fit([s for s in steps if s.decode_rows + s.prefill_tokens not in range(17, 100)], MODEL)
    work = StepWork(32, 3200)
    assert found.seconds(work) == pytest.approx(TRUTH.seconds(work), rel=0.05)


def test_more_rows_never_cost_less() -> None:
    rng = Random(5)
    steps = [sample(rng) for _ in range(100)]
    noisy = [measured(s.work, s.seconds * rng.uniform(0.7, 1.4)) for s in steps]
    heights = [seconds for _, seconds in fit(noisy, MODEL).rows]
    assert heights == sorted(heights)
    assert heights[0] > 0


def test_disturbed_steps_do_not_move_the_fit() -> None:
    rng = Random(6)
    steps = [sample(rng) for _ in range(400)]
    noisy = [
        measured(
            step.work, step.seconds * (rng.uniform(3, 9) if i % 25 == 0 else rng.gauss(1, 0.01))
        )
        for i, step in enumerate(steps)
    ]
    found = fit(noisy, MODEL)
    errors = [abs(relative_error(found, step)) for step in steps]
    assert sum(errors) / len(errors) < 0.02


def test_steps_are_spread_as_the_measured_ones_were() -> None:
    work, slow = StepWork(1, 100), StepWork(1, 100, 64, 4000)
    times = [1.0, 1.0, 1.0, 2.0] * 50
    steps = [measured(work, 0.01 * each) for each in times]
    steps += [measured(slow, 0.05) for _ in range(50)]
    found = fit(steps)
    assert found.seconds(work) == pytest.approx(0.01, rel=0.01)
    assert found.prefill_spread == pytest.approx((1.0,) * 50, abs=0.01)
    spread = SpreadCost(found, Random(1))
    drawn = sorted(spread.seconds(work) for _ in range(2000))
    assert drawn[0] == pytest.approx(0.01, rel=0.01)
    assert drawn[-1] == pytest.approx(0.02, rel=0.01)
    assert 0.2 < sum(each > 0.015 for each in drawn) / 2000 < 0.3
    assert SpreadCost(TRUTH, Random(1)).seconds(work) == TRUTH.seconds(work), "none is known"


def test_one_kind_of_step_is_enough_for_a_fit() -> None:
    found = fit([measured(StepWork(1), 0.25)] * 3)
    assert [rows for rows, _ in found.rows] == [1]
    assert found.seconds(StepWork(1)) == pytest.approx(0.25)
    assert found.seconds(StepWork(9)) == pytest.approx(0.25)


def test_a_fit_needs_a_step() -> None:
    with pytest.raises(ValueError, match="no step"):
        fit([])
