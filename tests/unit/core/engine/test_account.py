"""What a request took: its share of the steps, its chunks, and what was computed again."""

from typing import Any

import pytest

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.path import Finished, Usage
from tests.drive import Drive
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings, greedy, request


def usages(core: EngineCore, step_s: float) -> dict[str, Usage]:
    """Run everything, each step taking so long."""
    executor, now, found = ScriptedExecutor(core), 0.0, {}
    while core.has_work():
        plan = core.plan(Seconds(now))
        assert plan is not None
        executor.submit(plan)
        now += step_s
        for event in core.commit(plan, executor.collect(), Seconds(now)):
            if isinstance(event, Finished):
                found[event.request_id] = event.usage
    return found


def core_of(**settings: Any) -> EngineCore:
    return EngineCore(engine_settings(**settings), ByteTokenizer())


@pytest.mark.spec("M5")
def test_a_step_is_shared_by_tokens_and_all_shares_together_are_its_time() -> None:
    core = core_of(max_num_batched_tokens=32)
    core.add(request("long", range(20), sampling=greedy(1)), Seconds(0.0))
    core.add(request("short", range(100, 105), sampling=greedy(1)), Seconds(0.0))
    found = usages(core, 2.0)
    assert core.status().num_steps == 1
    assert found["long"].device_s == pytest.approx(2.0 * 20 / 25)
    assert found["short"].device_s == pytest.approx(2.0 * 5 / 25)


def test_shares_of_many_steps_add_up_to_the_time_of_all_steps() -> None:
    core = core_of(max_num_batched_tokens=8)
    for i in range(5):
        prompt = range(i, i + 3 + 4 * i)
        core.add(request(f"r{i}", prompt, n=1 + i % 2, sampling=greedy(3 + i)), Seconds(0.0))
    found = usages(core, 0.5)
    total = sum(usage.device_s for usage in found.values())
    assert total == pytest.approx(0.5 * core.status().num_steps)


@pytest.mark.spec("M6")
def test_chunks_are_the_steps_that_a_prompt_took() -> None:
    core = core_of(max_num_batched_tokens=8)
    core.add(request("a", range(20), sampling=greedy(4)), Seconds(0.0))
    core.add(request("b", range(100, 104), n=2, sampling=greedy(2)), Seconds(0.0))
    found = usages(core, 1.0)
    assert found["a"].num_chunks == 3
    assert found["b"].num_chunks in (1, 2)
    assert (found["a"].preemptions, found["a"].recomputed_tokens) == (0, 0)


@pytest.mark.spec("C6")
def test_what_is_computed_again_after_a_preemption_is_told() -> None:
    core = core_of(num_blocks=9, max_num_seqs=4, enable_prefix_caching=False)
    run = Drive(core, ScriptedExecutor(core))
    run.run([request(f"r{i}", range(6 * i, 6 * i + 6), sampling=greedy(12)) for i in range(4)])
    assert core.status().preemptions > 0
    told = [answer.finished.usage for answer in run.answers.values() if answer.finished]
    assert sum(usage.preemptions for usage in told) == core.status().preemptions
    assert sum(usage.preemptions_swapped for usage in told) == 0
    stopped = [usage for usage in told if usage.preemptions]
    assert all(usage.recomputed_tokens >= 1 for usage in stopped)
    assert all(usage.recomputed_tokens == 0 for usage in told if not usage.preemptions)
    computed = sum(sum(plan.num_tokens) for plan in run.plans)
    needed = 4 * (6 + 12 - 1)
    assert sum(usage.recomputed_tokens for usage in told) == computed - needed
