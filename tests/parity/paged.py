"""Logits of every position from our own model, over a poisoned pool and scattered blocks."""

import random
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headway.compute.gpu.kvpool.device import KvPool, KvShape
from headway.compute.gpu.runner.batch import make_batch
from headway.compute.gpu.runner.loading import LoadedModel
from headway.core.messages.step import StepPlan


@torch.inference_mode()
def paged_logits(
    model: LoadedModel, ids: Sequence[int], chunks: Sequence[int], block_size: int = 4
) -> Tensor:
    """[len(ids), V]: the ids computed in chunks of these sizes, through shuffled blocks.

    The pool is NaN at first, so that a slot read before it is written shows.
    """
    assert sum(chunks) == len(ids)
    num_blocks = 2 * (len(ids) // block_size + 1)
    card = model.card
    shape = KvShape(
        num_layers=card.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
    )
    pool = KvPool(shape, model.dtype, model.device)
    pool.data.fill_(float("nan"))
    blocks = random.Random(7).sample(range(num_blocks), num_blocks)
    grid = np.array([blocks], dtype=np.int32)
    found = []
    start = 0
    for step, size in enumerate(chunks):
        plan = StepPlan(
            step=step,
            tables=array("i", [0]),
            starts=array("i", [start]),
            num_tokens=array("i", [size]),
            token_ids=array("i", ids[start : start + size]),
            sequence_ids=(0,),
        )
        batch = make_batch(plan, grid, block_size, model.dtype, model.device)
        attention = model.attention.begin(batch.layout)
        hidden = model.decoder.forward(batch.tokens(array("i")), pool, attention)
        found.append(model.decoder.logits(hidden))
        start += size
    return torch.cat(found)
