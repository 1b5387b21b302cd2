"""Slot reuse on scripted logits: whoever had the slot before leaves no trace (E3, L2)."""

from random import Random

import pytest

from headway.core.engine.core import EngineCore
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState
from tests.drive import Drive
from tests.fakes import ByteTokenizer, ScriptedExecutor, engine_settings, hashed_next, request
from tests.soak.scale import scaled

BATCH = 250


def expected(prompt: list[int], sampling: Sampling) -> list[int]:
    """What the scripted model answers to a request that runs alone, without an engine."""
    tokens = list(prompt)
    state = SamplingState(
        sampling=sampling, choice=0, tokens=tokens, num_prompt=len(prompt), end_ids=()
    )
    for position in range(sampling.max_tokens):
        tokens.append(hashed_next(tokens, state, position))
    return tokens[len(prompt) :]


@pytest.mark.soak
@pytest.mark.spec("E3")
@pytest.mark.spec("L2")
@pytest.mark.parametrize("depth", [0, 1])
def test_request_switches_leave_no_trace(depth: int) -> None:
    total = scaled(100_000) // 2
    rng = Random(20261129 + depth)
    settings = engine_settings(num_blocks=48, max_num_seqs=6, max_num_batched_tokens=24)
    core = EngineCore(settings, ByteTokenizer())
    drive = Drive(core, ScriptedExecutor(core), depth)
    for start in range(0, total, BATCH):
        wanted = {}
        for index in range(start, min(start + BATCH, total)):
            prompt = [*range(rng.randrange(9)), *rng.choices(range(256), k=rng.randint(1, 12))]
            sampling = Sampling(
                max_tokens=rng.randint(1, 8), seed=rng.randrange(1, 9), temperature=1.0
            )
            drive.add(request(f"r{index}", prompt, sampling=sampling))
            wanted[f"r{index}"] = expected(prompt, sampling)
        drive.run()
        got = {name: drive.answers.pop(name).tokens[0] for name in wanted}
        assert got == wanted
        drive.plans.clear()
    assert core.status().generated_tokens > total
