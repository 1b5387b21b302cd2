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
from headway.compute.cpu.settings import CpuSettings, Isa
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
    kv_cache_dtype: str = "auto",
) -> LoadedModel:
    """A file whose card the tests read themselves."""
    card = read_card(path, scaling)
    settings = CpuSettings(threads=threads, kv_cache_dtype=kv_cache_dtype)
    return load_model(card, settings, lambda done, total: None, isa=isa)


def make_executor(model: LoadedModel, engine: ResolvedEngine, grid: "array[int]") -> CpuExecutor:
    """One line of the grid a sequence; a slot that is read before it is written shows."""
    width = len(grid) // engine.max_num_seqs
    executor = CpuExecutor(model, engine, memoryview(grid), width)
    for data in (executor.pool.keys, executor.pool.values):
        data.view(np.uint8).fill(NAN_BYTE)
    return executor


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
