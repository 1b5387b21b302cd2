"""The built-in model against transformers on the same expanded weights."""

import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, StepPlan
from headway.service.loaders.model_files import ModelFile
from tests.close import relative_error
from tests.parity.paged import paged_logits
from tests.parity.transformers_llama import transformers_llama, transformers_logits

PROMPTS = json.loads((Path(__file__).parent / "smollm_prompts.json").read_text())
SHORT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def ours(smollm2: ModelFile) -> LoadedModel:
    return load_model(smollm2.card, ExecutorSettings(), lambda done, total: None)


@pytest.fixture(scope="module")
def theirs(smollm2: ModelFile) -> Any:
    return transformers_llama(smollm2.card, Path(smollm2.path))


def long_text() -> list[int]:
    """300 ids: a prompt of prose, then ids drawn at random; far positions matter here."""
    ids = [token for prompt in PROMPTS for token in prompt["ids"] + prompt["next"]]
    rng = random.Random(3)
    return (ids + [rng.randrange(17, 49152) for _ in range(300)])[:300]


def worst_difference(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max())


@pytest.mark.spec("D1")
def test_logits_equal_those_of_an_independent_implementation_weights_loading_01(
    ours: LoadedModel, theirs: Any
) -> None:
    for ids in (SHORT, long_text()):
        want = transformers_logits(theirs, ids)
        for chunks in ([len(ids)], [3] + [1] * 2 + [len(ids) - 5] * (len(ids) > 5)):
            got = paged_logits(ours, ids, chunks, BLOCK_SIZE)
            assert worst_difference(got, want) < 0.05, f"{len(ids)} ids in {chunks}"
            assert relative_error(got, want) < 1e-4


def test_head_and_embedding_share_their_bytes_weights_loading_02(ours: LoadedModel) -> None:
    weights = ours.decoder.weights
    assert weights.head.weight.data_ptr() == weights.embedding.data_ptr()


@pytest.mark.spec("D1")
def test_greedy_texts_in_one_batch_equal_those_of_transformers(ours: LoadedModel) -> None:
    """The prompts, and the gaps that make them fair, come from tools/pick_parity_prompts.py."""
    assert all(prompt["gap"] > 0.5 for prompt in PROMPTS)
    assert greedy(ours, [prompt["ids"] for prompt in PROMPTS], len(PROMPTS[0]["next"])) == [
        prompt["next"] for prompt in PROMPTS
    ]


def test_fifty_greedy_tokens_equal_those_of_transformers_weights_loading_01(
    ours: LoadedModel, theirs: Any
) -> None:
    (got,) = greedy(ours, [SHORT], 50)
    logits = transformers_logits(theirs, SHORT + got)[len(SHORT) - 1 : -1]
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, logits.new_tensor(got).long()[:, None])[:, 0]
    # Every token is the best one of transformers' too, two last bits aside.
    assert float((best - chosen).max()) < 1e-3


def greedy(model: LoadedModel, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy continuations, all sequences in one batch, prompts in the first step."""
    count = len(prompts)
    width = -(-(max(len(ids) for ids in prompts) + num_tokens) // BLOCK_SIZE)
    grid = array("i", random.Random(1).sample(range(count * width), count * width))
    engine = ResolvedEngine(
        max_model_len=width * BLOCK_SIZE,
        max_num_seqs=count,
        max_num_batched_tokens=4096,
        block_size=BLOCK_SIZE,
        num_blocks=count * width,
        enable_prefix_caching=False,
        max_waiting_requests=count,
        max_waiting_tokens=4096,
    )
    executor = GpuExecutor(model, engine, memoryview(grid), width)
    executor.pool.data.fill_(float("nan"))
    sampling = Sampling(max_tokens=num_tokens, seed=0, temperature=0.0)
    tokens = [list(ids) for ids in prompts]
    states = tuple(
        SamplingState(sampling, 0, each, len(ids), ())
        for each, ids in zip(tokens, prompts, strict=True)
    )
    rows = array("i", range(count))
    computed = [0] * count
    for position in range(num_tokens):
        plan = StepPlan(
            step=position,
            tables=rows,
            starts=array("i", computed),
            num_tokens=array(
                "i", [len(ids) - done for ids, done in zip(tokens, computed, strict=True)]
            ),
            token_ids=array(
                "i",
                [i for ids, done in zip(tokens, computed, strict=True) for i in ids[done:]],
            ),
            sequence_ids=tuple(rows),
            sample_rows=rows,
            positions=array("i", [position] * count),
            states=states,
        )
        computed = [len(ids) for ids in tokens]
        executor.submit(plan)
        for ids, token in zip(tokens, executor.collect().token_ids, strict=True):
            ids.append(token)
    executor.close()
    return [each[len(ids) :] for each, ids in zip(tokens, prompts, strict=True)]
