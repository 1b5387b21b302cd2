"""The sums that a step's time depends on."""

import pytest

from headway.core.cost.work import StepWork, pairs_of


def test_each_token_looks_at_every_position_up_to_its_own() -> None:
    assert pairs_of(start=0, num_tokens=4) == 1 + 2 + 3 + 4
    assert pairs_of(start=10, num_tokens=2) == 11 + 12


@pytest.mark.spec("E1")
def test_decodes_and_prompts_are_counted_apart() -> None:
    work = StepWork()
    work.add(9, 1)
    work.add(4, 1)
    work.add(10, 2)
    assert work == StepWork(
        decode_rows=2, decode_pairs=10 + 5, prefill_tokens=2, prefill_pairs=11 + 12
    )


def test_a_row_that_is_taken_out_leaves_nothing_behind() -> None:
    work = StepWork()
    for start, num_tokens in ((7, 1), (0, 5)):
        work.add(start, num_tokens)
        work.add(start, num_tokens, -1)
    assert work == StepWork()
