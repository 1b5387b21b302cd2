"""The torch executor."""

from array import array
from collections import deque

import numpy as np
import torch
from torch import Tensor

from headway.compute.gpu.kvpool.device import KvPool, KvShape
from headway.compute.gpu.kvpool.host import HostTier
from headway.compute.gpu.runner.batch import StepBatch, make_batch
from headway.compute.gpu.runner.loading import LoadedModel
from headway.compute.gpu.sampling.logprobs import score_tokens
from headway.compute.gpu.sampling.sampler import draw_tokens
from headway.compute.sampling.draws import draws_of
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import TokenLogprob
from headway.core.messages.step import ScoreWork, StepPlan, StepResult

MAX_IN_FLIGHT = 2
SCORE_TOKENS = 64  # logits of this many scored tokens at once: 13 MB for 49,152 ids


class GpuExecutor:
    """Runs plans in order, each inside `collect`; keeps nothing of a step but its draws.

    One thread at a time may use it.
    """

    def __init__(
        self, model: LoadedModel, engine: ResolvedEngine, grid: memoryview, width: int
    ) -> None:
        """Take the KV pool's memory; raises NotEnoughMemory.

        grid  flat, 32-bit integers, `width` a line: block ids of each sequence. It is the
              engine's, and is read in `submit` only.
        """
        self._model = model
        self._block_size = engine.block_size
        self._grid = np.frombuffer(grid, dtype=np.int32).reshape(-1, width)
        card = model.card
        shape = KvShape(
            num_layers=card.num_layers,
            num_blocks=engine.num_blocks,
            block_size=engine.block_size,
            num_kv_heads=card.num_kv_heads,
            head_dim=card.head_dim,
        )
        self._pool = KvPool(shape, model.dtype, model.device)
        self._host = HostTier(self._pool.data, engine.num_host_blocks)
        self._queue: deque[StepBatch] = deque()
        self._previous_draws: array[int] = array("i")

    @property
    def pool(self) -> KvPool:
        """The KV of all sequences."""
        return self._pool

    def submit(self, plan: StepPlan) -> None:
        """Take a plan and copy its block tables; at most two may wait."""
        assert len(self._queue) < MAX_IN_FLIGHT, f"step {plan.step}: two plans are in flight"
        model = self._model
        self._queue.append(
            make_batch(plan, self._grid, self._block_size, model.dtype, model.device)
        )

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """Run the oldest plan."""
        batch = self._queue.popleft()
        plan, decoder = batch.plan, self._model.decoder
        moves_s = self._host.move(plan.saves, plan.loads)
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            self._pool.copy_blocks(sources, targets)
        attention = self._model.attention.begin(batch.layout)
        hidden = decoder.forward(batch.tokens(self._previous_draws), self._pool, attention)
        token_ids: array[int] = array("i")
        logprobs: tuple[TokenLogprob | None, ...] = ()
        if plan.sample_rows:
            logits = decoder.logits(hidden.index_select(0, batch.last_tokens(plan.sample_rows)))
            token_ids, logprobs = draw_tokens(logits, draws_of(plan, self._previous_draws))
        scores = tuple(self._score(batch, hidden, work) for work in plan.scores)
        self._previous_draws = token_ids
        return StepResult(
            step=plan.step,
            token_ids=token_ids,
            logprobs=logprobs,
            scores=scores,
            num_host_blocks=self._host.num_ready,
            moves_s=moves_s,
        )

    def close(self) -> None:
        """Free the KV pool and forget plans that were not collected."""
        self._queue.clear()
        self._host.close()
        self._pool.close()
        self._grid = np.empty((0, 1), dtype=np.int32)

    def _score(self, batch: StepBatch, hidden: Tensor, work: ScoreWork) -> tuple[TokenLogprob, ...]:
        offset = int(batch.layout.offsets[work.row])
        scored: list[TokenLogprob] = []
        for begin in range(0, len(work.targets), SCORE_TOKENS):
            targets = work.targets[begin : begin + SCORE_TOKENS]
            rows = hidden[offset + begin : offset + begin + len(targets)]
            scored += score_tokens(self._model.decoder.logits(rows), targets, work.num_top)
        return tuple(scored)
