"""The whole engine on the torch executor: a crowd gets the answers that each gets alone."""

import random

import pytest

from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.engine.core import EngineCore
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import EngineRequest, Sampling
from tests.drive import Drive
from tests.fakes import ByteTokenizer, engine_settings, request
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

SETTINGS = {
    "as it comes": engine_settings(),
    "too few blocks": engine_settings(num_blocks=24),
    "small chunks": engine_settings(max_num_batched_tokens=7, block_size=8),
    "no prefix cache": engine_settings(enable_prefix_caching=False, max_num_seqs=9),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_gguf(tmp_path_factory.mktemp("model") / "m.gguf", TinyLlama(seed=11))
    return load_model(read_card(path), ExecutorSettings(), lambda done, total: None)


def driven(model: LoadedModel, settings: ResolvedEngine, depth: int) -> Drive:
    core = EngineCore(settings, ByteTokenizer())
    executor = GpuExecutor(model, core.settings, core.grid.view, core.grid.width)
    executor.pool.data.fill_(float("nan"))
    return Drive(core, executor, depth)


def crowd() -> list[EngineRequest]:
    """Requests of every kind; many share the beginning of their prompts."""
    rng = random.Random(0)
    shared = [rng.randrange(256) for _ in range(13)]
    found = []
    for index in range(24):
        own = [rng.randrange(256) for _ in range(rng.randrange(1, 25))]
        sampling = Sampling(
            max_tokens=rng.randrange(1, 20),
            seed=index,
            temperature=rng.choice([0.0, 0.9]),
            top_p=rng.choice([1.0, 0.9]),
            frequency_penalty=rng.choice([0.0, 0.3]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            num_logprobs=rng.choice([None, 2]),
            prompt_logprobs=rng.random() < 0.2,
        )
        prompt = shared[: rng.randrange(14)] + own
        found.append(request(f"r{index}", prompt, n=rng.choice([1, 1, 2, 3]), sampling=sampling))
    return found


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_crowd_gets_the_answers_that_each_gets_alone(
    model: LoadedModel, name: str, depth: int
) -> None:
    plain = engine_settings(enable_prefix_caching=False, max_num_batched_tokens=64)
    together = driven(model, SETTINGS[name], depth).run(crowd())
    for each in crowd():
        alone = driven(model, plain, 0).run([each])[each.id]
        assert together[each.id].tokens == alone.tokens, each.id
        assert together[each.id].text == alone.text, each.id
