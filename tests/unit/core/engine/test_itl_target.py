"""Long prompts beside running streams, on a machine whose step times the test sets."""

import pytest

from headway.core.base.units import Seconds
from headway.core.cost.work import StepWork
from headway.core.engine.core import EngineCore
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings, greedy, request

TARGET = Seconds(0.15)
STREAMS = 8


def seconds(work: StepWork) -> float:
    """A small model on two cores, about."""
    decode = 3e-3 + 7e-4 * work.decode_rows + 3e-8 * work.decode_pairs
    return decode + 4e-4 * work.prefill_tokens + 3e-7 * work.prefill_pairs


def steps_beside_long_prompts(target: Seconds | None) -> tuple[list[float], float]:
    """Durations of the steps with streams and prompts in them, and when the last prompt ended."""
    settings = engine_settings(
        max_model_len=8192,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        num_blocks=20_000,
        itl_target=target,
    )
    core = EngineCore(settings, ByteTokenizer())
    executor = ScriptedExecutor(core, lambda tokens, state, position: position % 200)
    now = 0.0
    for i in range(STREAMS):
        core.add(request(f"stream{i}", range(i, i + 40), sampling=greedy(3000)), Seconds(now))
    durations: list[float] = []
    for step in range(1200):
        if step in (50, 60):
            prompt = [step, *(i % 251 for i in range(6000))]
            core.add(request(f"long{step}", prompt, sampling=greedy(1)), Seconds(now))
        plan = core.plan(Seconds(now))
        assert plan is not None
        executor.submit(plan)
        work = core.scheduler.budget.work
        took = seconds(work)
        now += took
        if work.prefill_tokens and work.decode_rows == STREAMS:
            durations.append(took)
        core.commit(plan, executor.collect(), Seconds(now))
        if step > 60 and len(core.scheduler.running) == STREAMS:
            return durations, now
    raise AssertionError("the long prompts did not come to their end")


@pytest.mark.spec("C8")
def test_streams_wait_no_longer_than_the_target_while_long_prompts_are_computed() -> None:
    durations, _ = steps_beside_long_prompts(TARGET)
    assert len(durations) > 50
    late = sum(took > TARGET for took in durations)
    assert late <= 0.01 * len(durations), f"{late} of {len(durations)} steps took too long"


def test_without_a_target_the_same_prompts_hold_the_streams_up() -> None:
    durations, _ = steps_beside_long_prompts(None)
    assert max(durations) > 3 * TARGET


@pytest.mark.spec("C8")
def test_the_target_costs_the_long_prompts_little_time() -> None:
    _, with_target = steps_beside_long_prompts(TARGET)
    _, without = steps_beside_long_prompts(None)
    assert with_target < 1.15 * without
