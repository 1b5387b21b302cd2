"""Failure cases of other engines' schedulers, on exact logits."""

from collections.abc import Sequence
from typing import Any

import pytest

from headway.core.messages.path import Finished, Sampling
from headway.core.messages.step import SamplingState
from tests.drive import Answer, Drive
from tests.fakes import EOS, greedy
from tests.mixed import INTERNAL, VIP, asked, machine


def of(run: Drive, request_id: str) -> Answer:
    answer = run.answers[request_id]
    assert isinstance(answer.finished, Finished), f"{request_id} has no end"
    return answer


def idle_and_clean(run: Drive) -> None:
    status = run.core.status()
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks


@pytest.mark.parametrize("depth", [0, 1])
def test_preemption_01_streams_are_those_of_the_serial_run(depth: int) -> None:
    settings: dict[str, Any] = {
        "max_model_len": 128,
        "block_size": 16,
        "num_blocks": 12,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }
    requests = [asked(f"r{i}", range(i, i + 20), sampling=greedy(100)) for i in range(8)]
    together = machine(depth, **settings)
    together.run(requests)
    assert together.core.status().preemptions > 0
    for request in requests:
        alone = machine(**settings)
        alone.run([request])
        got, want = of(together, request.id), of(alone, request.id)
        assert got.text == want.text
        assert got.tokens == want.tokens
        assert len(got.deltas[0]) == len(got.tokens[0]), "one event a token, none twice"
        assert got.finished is not None
        assert want.finished is not None
        assert got.finished.usage.completion_tokens == want.finished.usage.completion_tokens == 100
    idle_and_clean(together)


def test_preemption_02_a_long_prompt_is_not_admitted_and_thrown_out_for_ever() -> None:
    run = machine(
        max_model_len=512,
        block_size=16,
        num_blocks=20,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )
    requests = [asked(f"r{i}", range(i, i + 120), sampling=greedy(120)) for i in (1, 2)]
    run.add(*requests)
    for _ in range(8):
        run.step()
    requests.append(asked("r3", [(7 * i) % 251 for i in range(300)], sampling=greedy(12)))
    run.add(requests[-1])
    outputs = [run.core.status().generated_tokens]
    while run.step():
        outputs.append(run.core.status().generated_tokens)
    assert all(late > early for early, late in zip(outputs, outputs[50:], strict=False))
    for request in requests:
        assert of(run, request.id).finished is not None
    lengths = sum(len(r.prompt) + r.sampling.max_tokens for r in requests)
    assert sum(sum(plan.num_tokens) for plan in run.plans) <= 2 * lengths
    assert run.core.status().preemptions <= 3
    idle_and_clean(run)


def penalised(tokens: Sequence[int], state: SamplingState, position: int) -> int:
    """Exact logits with a penalty on what was generated: the best of what was used least."""
    ends: tuple[int, ...] = () if position < state.sampling.min_tokens else (EOS,)
    outputs, shift = list(tokens[state.num_prompt :]), sum(tokens[:3])

    def rank(token: int) -> tuple[int, int]:
        return outputs.count(token), (token * 7 + shift) % 41

    candidates = (*range(40), *ends)
    return min(candidates, key=rank)


def test_preemption_03_penalties_and_min_tokens_count_from_the_prompt_after_a_resume() -> None:
    settings: dict[str, Any] = {
        "max_model_len": 128,
        "block_size": 16,
        "num_blocks": 12,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
    }
    samplings = [
        Sampling(max_tokens=80, seed=0, temperature=0.0, frequency_penalty=1.0),
        Sampling(max_tokens=80, seed=0, temperature=0.0, min_tokens=60),
    ]
    requests = [
        asked(f"r{i}", range(i, i + 20), INTERNAL, sampling=sampling)
        for i, sampling in enumerate(samplings)
    ]
    run = machine(0, penalised, **settings)
    run.add(*requests)
    while min(len(run.answers[r.id].tokens[0]) for r in requests) < 30:
        run.step()
    run.add(*(asked(f"vip{i}", range(50, 60), VIP) for i in range(2)))
    run.run()
    assert run.core.status().preemptions_for_class == 2, "each was stopped once"
    for request in requests:
        alone = machine(0, penalised, **settings)
        alone.run([request])
        assert of(run, request.id).tokens == of(alone, request.id).tokens
        assert of(run, request.id).reasons == of(alone, request.id).reasons
    early = run.answers["r1"].tokens[0][:60]
    assert len(early) == 60
    assert EOS not in early
    idle_and_clean(run)


@pytest.mark.parametrize("depth", [0, 1])
def test_priority_fairness_01_a_vip_takes_a_slot_from_a_full_batch_at_once(depth: int) -> None:
    settings: dict[str, Any] = {"max_model_len": 600, "num_blocks": 1000, "max_num_seqs": 4}
    low = [asked(f"low{i}", range(i, i + 8), INTERNAL, sampling=greedy(500)) for i in range(4)]
    run = machine(depth, **settings)
    run.add(*low)
    for _ in range(10):
        run.step()
    run.add(asked("vip", range(5), VIP), asked("sixth", range(6), INTERNAL, sampling=greedy(500)))
    for _ in range(2 + depth):
        run.step()
    assert run.answers["vip"].tokens[0], "its first token came within two steps"
    run.run()
    status = run.core.status()
    assert (status.preemptions, status.preemptions_for_class) == (1, 1)
    for request in low:
        alone = machine(**settings)
        alone.run([request])
        assert of(run, request.id).tokens == of(alone, request.id).tokens
    assert of(run, "sixth").finished is not None
    idle_and_clean(run)
