"""What the conformance suite does not ask of every executor."""

from array import array
from pathlib import Path

import numpy as np
import pytest

from headway.compute.cpu import kvpool
from headway.compute.cpu.executor import MAX_IN_FLIGHT, CpuExecutor
from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.settings import CpuSettings
from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.messages.path import Sampling
from headway.core.messages.step import BlockCopy, SamplingState, ScoreWork, StepPlan, StepResult
from tests.fakes import engine_settings
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

WIDTH = 8
ENGINE = engine_settings(
    max_model_len=128, max_num_seqs=2, max_num_batched_tokens=100, block_size=16, num_blocks=20
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_gguf(tmp_path_factory.mktemp("m") / "m.gguf", TinyLlama(head_dim=32, seed=3))
    return load_model(read_card(path), CpuSettings(threads=2), lambda done, total: None)


def new_executor(model: LoadedModel) -> CpuExecutor:
    grid = array("i", range(2 * WIDTH))
    return CpuExecutor(model, ENGINE, memoryview(grid), WIDTH)


def plan(
    tokens: list[int],
    *,
    start: int = 0,
    line: int = 0,
    copies: tuple[BlockCopy, ...] = (),
    sampling: Sampling | None = None,
    scores: tuple[ScoreWork, ...] = (),
) -> StepPlan:
    """One row; its last token is sampled if there is a sampling."""
    states = () if sampling is None else (SamplingState(sampling, 0, tokens, len(tokens), ()),)
    return StepPlan(
        step=start,
        tables=array("i", [line]),
        starts=array("i", [start]),
        num_tokens=array("i", [len(tokens)]),
        token_ids=array("i", tokens),
        sequence_ids=(line,),
        copies=copies,
        sample_rows=array("i", [0] * len(states)),
        positions=array("i", [0] * len(states)),
        states=states,
        scores=scores,
    )


def run(executor: CpuExecutor, work: StepPlan) -> StepResult:
    executor.submit(work)
    return executor.collect()


SCORED = Sampling(max_tokens=9, seed=0, temperature=0.0, num_logprobs=5)


@pytest.mark.parametrize("block_size", [1, 8])
def test_startup_config_01_blocks_that_vectors_do_not_fit_are_refused(
    block_size: int, model: LoadedModel
) -> None:
    engine = engine_settings(block_size=block_size)
    with pytest.raises(InvalidSetting) as caught:
        CpuExecutor(model, engine, memoryview(array("i", [0] * 64)), 16)
    assert caught.value.message == (
        f"--block-size: the CPU executor needs a multiple of 16, got {block_size}"
    )


def test_a_pool_that_does_not_fit_says_what_to_set(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(sizes: object, dtype: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kvpool, "aligned_zeros", no_memory)
    with pytest.raises(NotEnoughMemory, match="--kv-cache-memory-bytes"):
        new_executor(model)


def test_two_plans_may_wait_and_not_three(model: LoadedModel) -> None:
    executor = new_executor(model)
    for _ in range(MAX_IN_FLIGHT):
        executor.submit(plan([1, 2]))
    with pytest.raises(AssertionError, match="two plans are in flight"):
        executor.submit(plan([3]))
    executor.close()


def test_the_first_step_has_the_bits_of_later_ones(model: LoadedModel) -> None:
    """The first one is computed by one thread, the others by two."""
    executor = new_executor(model)
    tokens = [5, 9, 2, 200, 31]
    first = run(executor, plan(tokens, sampling=SCORED))
    second = run(executor, plan(tokens, line=1, sampling=SCORED))
    assert first.token_ids == second.token_ids
    assert first.logprobs == second.logprobs
    assert first.logprobs[0] is not None
    executor.close()


def test_more_scored_rows_than_there_is_room_for_logits_are_computed_in_parts(
    model: LoadedModel,
) -> None:
    executor = new_executor(model)
    tokens = [(7 * i) % 256 for i in range(100)]
    targets = array("i", tokens[1:])
    whole = plan(tokens, scores=(ScoreWork(0, targets, 2),))
    (scored,) = run(executor, whole).scores
    assert len(scored) == 99, "the workspace has room for 64"
    for at in (0, 63, 64, 98):
        alone = plan(tokens[: at + 1], line=1, sampling=SCORED)
        (last,) = run(executor, alone).logprobs
        assert last is not None
        assert last.top[:2] == scored[at].top
        assert scored[at].token_id == targets[at]
    executor.close()


def test_a_step_may_score_and_draw_at_once(model: LoadedModel) -> None:
    executor = new_executor(model)
    tokens = [4, 8, 15, 16, 23]
    only_draw = run(executor, plan(tokens, sampling=SCORED))
    targets = array("i", tokens[1:])
    both = run(executor, plan(tokens, line=1, sampling=SCORED, scores=(ScoreWork(0, targets, 1),)))
    assert both.logprobs == only_draw.logprobs
    assert [each.token_id for each in both.scores[0]] == tokens[1:]
    executor.close()


def test_copies_come_before_the_step_and_read_before_they_write(model: LoadedModel) -> None:
    executor = new_executor(model)
    run(executor, plan(list(range(32))))
    before = executor.pool.keys.copy(), executor.pool.values.copy()
    run(executor, plan([1], line=1, copies=(BlockCopy(0, 1), BlockCopy(1, 0))))
    for held, data in zip(before, (executor.pool.keys, executor.pool.values), strict=True):
        assert np.array_equal(data[:, 0], held[:, 1])
        assert np.array_equal(data[:, 1], held[:, 0])
        assert not np.array_equal(held[:, 0], held[:, 1])
    executor.close()


def test_a_step_writes_only_its_own_slots(model: LoadedModel) -> None:
    executor = new_executor(model)
    executor.pool.keys.fill(0x7FC0)
    executor.pool.values.fill(0x7FC0)
    run(executor, plan([3, 1, 4, 1, 5], start=0, line=1))
    block = WIDTH  # the first of line 1
    keys, values = executor.pool.keys, executor.pool.values
    assert (keys[:, block, :, :, :5] != 0x7FC0).all()
    positions = values.swapaxes(-2, -1).reshape(*values.shape[:3], -1, values.shape[-2])
    assert (positions[:, block, :, :5] != 0x7FC0).all()
    assert (positions[:, block, :, 5:] == 0x7FC0).all()
    keys[:, block, :, :, :5] = values[:, block, :, :3] = 0x7FC0
    assert (keys == 0x7FC0).all()
    assert (values == 0x7FC0).all()
    executor.close()


def test_a_context_that_grows_needs_more_memory_for_partial_sums_than_it_had(
    tmp_path: Path,
) -> None:
    tiny = TinyLlama(head_dim=32, context_length=1024)
    path = write_gguf(tmp_path / "m.gguf", tiny)
    long = load_model(read_card(path), CpuSettings(threads=2), lambda done, total: None)
    engine = engine_settings(
        max_model_len=1024, max_num_seqs=1, max_num_batched_tokens=1024, block_size=16
    )
    tokens = [(11 * i) % 251 for i in range(1000)]
    drawn = []
    for chunks in ([999, 1], [1000], [300] * 3 + [100]):
        grid = array("i", range(64))
        executor = CpuExecutor(long, engine, memoryview(grid), 64)
        start = 0
        for size in chunks:
            part = tokens[start : start + size]
            result = run(executor, plan(part, start=start, sampling=SCORED))
            start += size
        drawn.append(result.logprobs)
        executor.close()
    assert drawn[0] == drawn[1] == drawn[2]


def test_closing_forgets_plans_and_frees_the_pool(model: LoadedModel) -> None:
    executor = new_executor(model)
    run(executor, plan([1, 2, 3]))
    executor.submit(plan([4], start=3))
    executor.close()
    assert executor.pool.keys.size == executor.pool.values.size == 0
    executor.close()
