"""The executor that computes nothing."""

from array import array

import pytest

from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, ScoreWork, StepPlan
from headway.core.sim.executor import END, TOKEN, SimExecutor, SimTokenizer
from tests.unit.core.sim.runs import COST


def plan(step: int, *draws: tuple[int, int]) -> StepPlan:
    """A step that draws: each a seed and an output position."""
    rows = range(len(draws))
    return StepPlan(
        step=step,
        tables=array("i", rows),
        starts=array("i", [9 for _ in rows]),
        num_tokens=array("i", [1 for _ in rows]),
        token_ids=array("i", [TOKEN for _ in rows]),
        sequence_ids=tuple(rows),
        sample_rows=array("i", rows),
        positions=array("i", [position for _, position in draws]),
        states=tuple(
            SamplingState(Sampling(max_tokens=9, seed=seed), 0, [], 0, ()) for seed, _ in draws
        ),
    )


def test_plans_are_collected_in_order() -> None:
    executor = SimExecutor(COST)
    executor.submit(plan(1, (0, 0)))
    executor.submit(plan(2, (0, 1), (1, 0)))
    assert executor.collect().step == 1
    second = executor.collect()
    assert (second.step, second.token_ids.tolist()) == (2, [TOKEN, TOKEN])
    executor.close()
    executor.close()


def test_an_answer_ends_at_the_position_that_was_given_for_its_seed() -> None:
    executor = SimExecutor(COST, {7: 3})
    executor.submit(plan(1, (7, 1), (7, 2), (8, 2)))
    assert executor.collect().token_ids.tolist() == [TOKEN, END, TOKEN]


def test_a_plan_takes_what_it_costs() -> None:
    assert SimExecutor(COST).seconds(plan(1, (0, 0), (1, 0))) == 1.5


def test_scores_are_refused() -> None:
    executor = SimExecutor(COST)
    scored = plan(1, (0, 0))
    object.__setattr__(scored, "scores", (ScoreWork(0, array("i", [1]), 1),))
    executor.submit(scored)
    with pytest.raises(AssertionError, match="no log-probabilities"):
        executor.collect()


def test_its_tokens_are_letters_and_only_the_end_is_special() -> None:
    tokenizer = SimTokenizer()
    assert tokenizer.token_bytes(TOKEN) == b"x"
    assert tokenizer.is_special(END)
    assert not tokenizer.is_special(TOKEN)
    assert tokenizer.eos_ids == (END,)
    text = "a€"
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert len(ids) == tokenizer.min_tokens(text) == 4
