"""The slow lane: long prompts beside short ones."""

import pytest

from headway.core.messages.path import EngineRequest
from headway.core.sched.chunks import StepBudget
from headway.core.sched.lanes import Lanes, LaneSettings
from tests.fakes import greedy
from tests.mixed import asked, machine

SETTINGS = LaneSettings(long_prompt=20, long_output=30, share=0.5, max_model_len=100)


def lanes(tokens: int = 64) -> Lanes:
    budget = StepBudget(tokens)
    budget.begin()
    made = Lanes(SETTINGS, budget, 16)
    made.open()
    return made


def of(prompt: int, max_tokens: int) -> EngineRequest:
    return asked("r", range(prompt), sampling=greedy(max_tokens))


@pytest.mark.spec("C2")
def test_long_prompts_and_long_answers_go_by_the_slow_lane() -> None:
    assert [lanes().is_long(of(p, m)) for p, m in ((20, 30), (21, 5), (5, 31))] == [
        False,
        True,
        True,
    ]


def test_an_answer_without_a_limit_of_its_own_is_not_taken_for_a_long_one() -> None:
    assert not lanes().is_long(of(20, 80))


@pytest.mark.spec("C4")
def test_a_long_prompt_has_its_share_of_the_step_and_a_short_one_the_rest() -> None:
    lane = lanes()
    assert lane.chunk(0, 1000, is_long=True) == 32
    lane.budget.take(0, 32)
    lane.spend(32)
    assert lane.chunk(0, 1000, is_long=True) == 0
    assert lane.was_short
    assert lane.chunk(0, 1000, is_long=False) == 32


def test_what_the_short_ones_leave_is_for_the_long() -> None:
    lane = lanes()
    lane.spend(lane.chunk(0, 1000, is_long=True))
    lane.lift()
    assert lane.chunk(32, 1000, is_long=True) == 64


def test_slots_are_kept_for_short_ones_where_there_are_many() -> None:
    assert [Lanes(SETTINGS, StepBudget(8), slots).max_long for slots in (1, 7, 8, 32)] == [
        1,
        7,
        7,
        28,
    ]


def steps_until(first: str, *, share: float, long: int = 6) -> int:
    """Steps until that request has its first token, behind long prompts of the same class."""
    run = machine(
        max_model_len=512,
        num_blocks=2000,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        long_prompt=64,
        slow_lane_share=share,
    )
    run.add(*(asked(f"l{i}", range(i, i + 250)) for i in range(long)), asked("s", range(30)))
    for step in range(1, 200):
        run.step()
        if run.answers[first].tokens:
            return step
    raise AssertionError("no first token")


@pytest.mark.spec("C4")
def test_a_short_prompt_starts_while_long_ones_of_its_class_are_computed() -> None:
    assert steps_until("s", share=0.5) <= 3
    assert steps_until("s", share=1.0) > 20


def test_long_prompts_alone_have_the_whole_step() -> None:
    run = machine(max_model_len=512, num_blocks=500, max_num_batched_tokens=32, long_prompt=64)
    run.add(asked("l", range(250)))
    run.step()
    assert list(run.plans[0].num_tokens) == [32]


@pytest.mark.parametrize("short", [3, 8])
def test_a_step_beside_a_short_prompt_is_used_up(short: int) -> None:
    run = machine(max_model_len=512, num_blocks=500, max_num_batched_tokens=32, long_prompt=64)
    run.add(asked("l", range(250)), asked("s", range(100, 100 + short)))
    run.step()
    assert sorted(run.plans[0].num_tokens) == [short, 32 - short]
