"""Learning a machine's step times."""

import pytest

from headway.core.base.units import Seconds
from headway.core.cost.fitted import FittedCost
from headway.core.cost.work import StepWork


def machine(work: StepWork) -> Seconds:
    """A machine whose times follow the model exactly."""
    decode = 3e-3 + 7e-4 * work.decode_rows + 2e-8 * work.decode_pairs
    return Seconds(decode + 4e-4 * work.prefill_tokens + 3e-7 * work.prefill_pairs)


def step(*rows: tuple[int, int]) -> StepWork:
    work = StepWork()
    for start, num_tokens in rows:
        work.add(start, num_tokens)
    return work


def trained() -> FittedCost:
    cost = FittedCost()
    for i in range(60):
        decodes = [(100 * (j + 1) + i, 1) for j in range(1 + i % 8)]
        for work in (step(*decodes), step(*decodes, (256 * (i % 20), 256))):
            cost.observe(work, machine(work))
    return cost


def test_nothing_is_known_before_a_step_was_measured() -> None:
    cost = FittedCost()
    assert not cost.knows_prefill
    assert cost.seconds(step((0, 256))) == 0.0


@pytest.mark.parametrize(
    "work",
    [
        step((300, 1)),
        step(*[(500, 1)] * 8),
        step((5000, 1), (4096, 100)),
        step((0, 200)),
        step(*[(700, 1)] * 4, (7000, 64)),
    ],
)
def test_steps_that_were_never_seen_are_predicted(work: StepWork) -> None:
    assert trained().seconds(work) == pytest.approx(machine(work), rel=0.05)


def test_one_disturbed_step_hardly_changes_the_predictions() -> None:
    cost, work = trained(), step(*[(500, 1)] * 4)
    cost.observe(work, Seconds(2.0))
    assert cost.seconds(work) == pytest.approx(machine(work), rel=0.25)


def test_a_machine_that_becomes_slower_is_believed() -> None:
    cost, work = trained(), step(*[(500, 1)] * 4, (0, 256))
    for _ in range(100):
        cost.observe(work, Seconds(5 * machine(work)))
    assert cost.seconds(work) == pytest.approx(5 * machine(work), rel=0.05)


def test_a_first_chunk_teaches_what_long_contexts_might_cost() -> None:
    cost, first = FittedCost(), step((0, 256))
    cost.observe(first, Seconds(0.1))
    assert cost.seconds(first) == pytest.approx(0.1, rel=0.05)
    assert cost.seconds(step((8192, 256))) > 3 * cost.seconds(first)
