"""Logits of every position from the CPU executor, over a poisoned pool and scattered blocks."""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from headway.compute.cpu import executor as executor_module
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.features import host_features, offers
from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.logprobs import Float32s
from headway.compute.cpu.settings import CpuSettings, Isa, Quantization
from headway.core.base.model_card import RopeScaling
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import TokenLogprob
from headway.core.messages.step import ScoreWork, StepPlan
from tests.fakes import engine_settings
from tests.parity.cards import read_card

BLOCK_SIZE = 16
NAN_BYTE = 0xFF  # all of them are NaN as bfloat16 and as a scale
ISAS = [isa for isa in Isa if offers(isa, host_features())]


def load(
    path: Path,
    *,
    scaling: RopeScaling | None = None,
    threads: int = 1,
    isa: Isa | None = None,
    quantization: Quantization = Quantization.NONE,
    kv_cache_dtype: str = "auto",
) -> LoadedModel:
    """A file whose card the tests read themselves; its weights stay as they are by default."""
    card = read_card(path, scaling)
    settings = CpuSettings(
        threads=threads, quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    return load_model(card, settings, lambda done, total: None, isa=isa)


def make_executor(model: LoadedModel, engine: ResolvedEngine, grid: "array[int]") -> CpuExecutor:
    """One line of the grid a sequence; a slot that is read before it is written shows."""
    width = len(grid) // engine.max_num_seqs
    executor = CpuExecutor(model, engine, memoryview(grid), width)
    for data in (executor.pool.keys, executor.pool.values):
        data.view(np.uint8).fill(NAN_BYTE)
    return executor


def mixed_logits(
    model: LoadedModel, texts: Sequence[Sequence[int]], chunks: Sequence[Sequence[int]]
) -> list[Tensor]:
    """[len(ids), V] of each of some texts that share their steps.

    chunks  of each step: how many tokens each text goes on by, 0 for none
    """
    width = -(-max(map(len, texts)) // BLOCK_SIZE)
    num_blocks = 2 * width * len(texts)
    engine = engine_settings(
        max_model_len=width * BLOCK_SIZE,
        max_num_seqs=len(texts),
        max_num_batched_tokens=max(map(sum, chunks)),
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
    )
    grid = array("i", random.Random(8).sample(range(num_blocks), width * len(texts)))
    executor = make_executor(model, engine, grid)
    found: list[Tensor] = []

    def keep(logits: Float32s, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
        found.append(torch.from_numpy(logits.copy()))
        return []

    starts = [0] * len(texts)
    by_text: list[list[Tensor]] = [[] for _ in texts]
    with patch.object(executor_module, "score_tokens", keep):
        for step, counts in enumerate(chunks):
            rows = [index for index, count in enumerate(counts) if count]
            ids = [texts[i][starts[i] : starts[i] + counts[i]] for i in rows]
            plan = StepPlan(
                step=step,
                tables=array("i", rows),
                starts=array("i", [starts[i] for i in rows]),
                num_tokens=array("i", [counts[i] for i in rows]),
                token_ids=array("i", [each for some in ids for each in some]),
                sequence_ids=tuple(rows),
                scores=tuple(
                    ScoreWork(row, array("i", [0] * counts[i]), 0) for row, i in enumerate(rows)
                ),
            )
            executor.submit(plan)
            executor.collect()
            for i, work in zip(rows, plan.scores, strict=True):
                while sum(map(len, by_text[i])) < starts[i] + len(work.targets):
                    by_text[i].append(found.pop(0))
                starts[i] += counts[i]
    executor.close()
    assert not found
    return [torch.cat(each) for each in by_text]


def cpu_logits(
    model: LoadedModel, ids: Sequence[int], chunks: Sequence[int], block_size: int = BLOCK_SIZE
) -> Tensor:
    """[len(ids), V]: the ids computed in chunks of these sizes, through shuffled blocks.

    The executor gives nobody its logits; they are taken from the call that makes
    log-probabilities of them.
    """
    assert sum(chunks) == len(ids)
    width = -(-len(ids) // block_size)
    engine = engine_settings(
        max_model_len=width * block_size,
        max_num_seqs=1,
        max_num_batched_tokens=max(chunks),
        block_size=block_size,
        num_blocks=2 * width,
    )
    grid = array("i", random.Random(7).sample(range(2 * width), width))
    executor = make_executor(model, engine, grid)
    found: list[Tensor] = []

    def keep(logits: Float32s, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
        found.append(torch.from_numpy(logits.copy()))
        return []

    start = 0
    with patch.object(executor_module, "score_tokens", keep):
        for step, count in enumerate(chunks):
            plan = StepPlan(
                step=step,
                tables=array("i", [0]),
                starts=array("i", [start]),
                num_tokens=array("i", [count]),
                token_ids=array("i", ids[start : start + count]),
                sequence_ids=(0,),
                scores=(ScoreWork(0, array("i", [0] * count), 0),),
            )
            executor.submit(plan)
            executor.collect()
            start += count
    executor.close()
    logits = torch.cat(found)
    assert logits.shape == (len(ids), model.card.vocab_size)
    return logits
