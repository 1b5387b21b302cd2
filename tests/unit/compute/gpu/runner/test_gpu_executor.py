"""What the conformance suite cannot see: logprobs, scores and memory of the torch executor."""

import random
from array import array

import psutil
import pytest
import torch

from headway.compute.gpu.runner import executor as executor_module
from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, ScoreWork, StepPlan
from tests.fakes import engine_settings
from tests.parity.cards import read_card
from tests.parity.paged import paged_logits
from tests.parity.tiny_llama import TinyLlama, write_gguf

IDS = random.Random(2).choices(range(257), k=23)
GREEDY = Sampling(max_tokens=9, seed=0, temperature=0.0, num_logprobs=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_gguf(tmp_path_factory.mktemp("model") / "m.gguf", TinyLlama(seed=4))
    return load_model(read_card(path), ExecutorSettings(), lambda done, total: None)


def made(model: LoadedModel) -> GpuExecutor:
    engine = engine_settings(block_size=4, num_blocks=16)
    return GpuExecutor(model, engine, memoryview(array("i", range(16))), 16)


def plan(start: int, end: int, *, scores: tuple[ScoreWork, ...] = ()) -> StepPlan:
    """Positions of IDS on line 0, sampled when the last one is among them."""
    is_last = end == len(IDS)
    state = SamplingState(GREEDY, 0, IDS, len(IDS), ())
    return StepPlan(
        step=7,
        tables=array("i", [0]),
        starts=array("i", [start]),
        num_tokens=array("i", [end - start]),
        token_ids=array("i", IDS[start:end]),
        sequence_ids=(0,),
        sample_rows=array("i", [0] * is_last),
        positions=array("i", [0] * is_last),
        states=(state,) * is_last,
        scores=scores,
    )


def test_logprobs_and_scores_are_those_of_the_logits(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "SCORE_TOKENS", 5)
    want = paged_logits(model, IDS, [len(IDS)]).log_softmax(-1)
    executor = made(model)
    executor.submit(plan(0, 10, scores=(ScoreWork(0, array("i", IDS[1:11]), 2),)))
    executor.submit(plan(10, 23, scores=(ScoreWork(0, array("i", IDS[11:]), 2),)))
    first, second = executor.collect(), executor.collect()
    assert first.step == 7
    assert not first.token_ids
    scored = first.scores[0] + second.scores[0]
    assert len(scored) == len(IDS) - 1
    for each, token, row in zip(scored, IDS[1:], want, strict=False):
        assert each.token_id == token
        assert each.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert [token_id for token_id, _ in each.top] == row.topk(2).indices.tolist()
    (logprob,) = second.logprobs
    assert logprob is not None
    assert second.token_ids[0] == logprob.token_id == int(want[-1].argmax())
    assert [value for _, value in logprob.top] == pytest.approx(
        want[-1].topk(3).values.tolist(), abs=1e-4
    )


def test_pool_pages_are_not_taken_before_they_are_used(model: LoadedModel) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    engine = engine_settings(block_size=16, num_blocks=1 << 18)
    executor = GpuExecutor(model, engine, memoryview(array("i", [1 << 17])), 1)
    executor.submit(plan(0, 16))
    executor.collect()
    assert executor.pool.data[:, 1 << 17].count_nonzero() > 0
    assert executor.pool.data.nbytes == 1 << 31
    assert process.memory_info().rss - before < 1 << 28
    executor.close()


def test_a_third_plan_in_flight_is_our_own_bug(model: LoadedModel) -> None:
    executor = made(model)
    executor.submit(plan(0, 4))
    executor.submit(plan(4, 8))
    with pytest.raises(AssertionError, match="two plans are in flight"):
        executor.submit(plan(8, 12))


def test_nothing_is_tracked_for_gradients(model: LoadedModel) -> None:
    executor = made(model)
    executor.submit(plan(0, 4))
    executor.collect()
    assert not executor.pool.data.requires_grad
    assert torch.is_grad_enabled()


def test_closing_releases_the_grid(model: LoadedModel) -> None:
    grid = array("i", range(16))
    executor = GpuExecutor(model, engine_settings(num_blocks=16), memoryview(grid), 16)
    executor.close()
    grid.append(1)  # an array that is still lent cannot grow
    assert executor.pool.data.numel() == 0
