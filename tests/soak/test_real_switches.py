"""Slot reuse on the real model: each request answers as it does alone (E3, L2)."""

from random import Random

import pytest

from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Sampling, TokenLogprob, Tokens
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.drive import Answer, Drive
from tests.fakes import engine_settings, request
from tests.soak.scale import scaled

NEAR_TIE = 1e-3  # logits closer than this may swap when float32 sums run in another order


def drive(model: LoadedModel, file: ModelFile) -> Drive:
    settings = engine_settings(
        max_model_len=128, max_num_seqs=4, max_num_batched_tokens=48, block_size=16, num_blocks=40
    )
    core = EngineCore(settings, build_tokenizer(file))
    return Drive(core, GpuExecutor(model, settings, core.grid.view, core.grid.width))


def requests(count: int) -> list[EngineRequest]:
    rng = Random(20261129)
    made = []
    for index in range(count):
        prompt = [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 60))]
        sampling = Sampling(
            max_tokens=rng.randint(1, 8), seed=index, temperature=0.0, num_logprobs=2
        )
        made.append(request(f"r{index}", prompt, sampling=sampling))
    return made


def logprobs(answer: Answer) -> list[TokenLogprob]:
    return [entry for e in answer.events if isinstance(e, Tokens) for entry in e.logprobs]


def differs(got: Answer, alone: Answer) -> bool:
    """True when a token differs where the lone run was not undecided between two."""
    for mine, other in zip(logprobs(got), logprobs(alone), strict=False):
        if mine.token_id != other.token_id:
            return other.top[0][1] - other.top[1][1] >= NEAR_TIE
        if abs(mine.logprob - other.logprob) > 1e-3:
            return True
    return False


@pytest.mark.soak
@pytest.mark.spec("E3")
@pytest.mark.spec("L2")
def test_real_request_switches_leave_no_trace(smollm2: ModelFile) -> None:
    model = load_model(smollm2.card, ExecutorSettings(), lambda _done, _all: None)
    wanted = requests(scaled(500))
    mixed = drive(model, smollm2)
    answers = mixed.run(wanted)
    assert len(answers) == len(wanted)
    alone = drive(model, smollm2)
    wrong = []
    for each in wanted:
        lone = alone.run([each])[each.id]
        assert lone.finished is not None
        if differs(answers[each.id], lone):
            wrong.append(each.id)
    assert wrong == []
    status = mixed.core.status()
    assert status.free_blocks + status.cached_blocks == status.total_blocks
