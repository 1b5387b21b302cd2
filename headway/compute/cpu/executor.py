"""The CPU executor: plans in order, each one compiled call a thread."""

from array import array
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.batch.flat import FlatStep, Int32s, flatten
from headway.compute.cpu.attention_plan import AttentionPlan, plan_attention
from headway.compute.cpu.entry import gemm_address
from headway.compute.cpu.host_tier import HostMemory, HostTier
from headway.compute.cpu.kvpool import KvPool, KvShape
from headway.compute.cpu.loading import LoadedModel
from headway.compute.cpu.logprobs import score_tokens
from headway.compute.cpu.phases import TICKS
from headway.compute.cpu.sampler import draw_tokens
from headway.compute.cpu.step import project, step
from headway.compute.cpu.team import Team
from headway.compute.cpu.workspace import Workspace
from headway.compute.sampling.draws import draws_of
from headway.core.base.errors import InvalidSetting
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import TokenLogprob
from headway.core.messages.step import ScoreWork, StepPlan, StepResult

MAX_IN_FLIGHT = 2
CLAIM_WORDS = 8  # a cache line, for the counter of claimed units of a layer
LANES = 16  # positions that attention takes at once

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class CpuExecutor:
    """Runs plans in order, each inside `collect`; keeps nothing of a step but its draws.

    One thread at a time may use it. A row's logits depend on its own tokens only, to the
    last bit: not on the other rows, the number of threads, chunks or where blocks lie.
    """

    def __init__(
        self,
        model: LoadedModel,
        engine: ResolvedEngine,
        grid: memoryview,
        width: int,
        host: HostMemory | None = None,
    ) -> None:
        """Take the KV pool's memory; raises NotEnoughMemory, and InvalidSetting.

        grid  flat, 32-bit integers, `width` a line: block ids of each sequence. It is the
              engine's, and is read in `submit` only.
        host  where the host tier's memory comes from
        """
        if engine.block_size % LANES:
            raise InvalidSetting(
                "--block-size",
                f"the CPU executor needs a multiple of {LANES}, got {engine.block_size}",
            )
        card = model.card
        self._model = model
        self._block_size = engine.block_size
        self._grid = np.frombuffer(grid, dtype=np.int32).reshape(-1, width)
        self._pool = KvPool(
            KvShape(
                num_layers=card.num_layers,
                num_blocks=engine.num_blocks,
                block_size=engine.block_size,
                num_kv_heads=card.num_kv_heads,
                head_dim=card.head_dim,
                dtype=model.kv_dtype,
            )
        )
        arrays = (self._pool.keys, self._pool.values)
        self._host = HostTier(arrays, engine.num_host_blocks, host or HostMemory())
        self._team = Team(model.threads)
        self._work = Workspace(card, model.weights, engine, model.threads)
        self._gemm = gemm_address(model.isa)
        self._queue: deque[FlatStep] = deque()
        self._previous_draws: array[int] = array("i")
        # The first step compiles, or loads from the cache, which threads must not do at once.
        self._num_threads = 1

    @property
    def pool(self) -> KvPool:
        """The KV of all sequences."""
        return self._pool

    def profile(self) -> Ints:
        """Time the phases from now on; returns where, as `phases.py` says. Adds up: zero it."""
        self._work.ticks = np.zeros((self._team.num_threads, TICKS), np.int64)
        return self._work.ticks

    def submit(self, plan: StepPlan) -> None:
        """Take a plan and copy its block tables; at most two may wait."""
        assert len(self._queue) < MAX_IN_FLIGHT, f"step {plan.step}: two plans are in flight"
        self._queue.append(flatten(plan, self._grid, self._block_size))

    def collect(self) -> StepResult:
        """Run the oldest plan."""
        flat = self._queue.popleft()
        plan = flat.plan
        moves_s = self._host.move(plan.saves, plan.loads)
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            self._pool.copy_blocks(sources, targets)
        logits = self._compute(flat)
        token_ids: array[int] = array("i")
        logprobs: tuple[TokenLogprob | None, ...] = ()
        if plan.sample_rows:
            token_ids, logprobs = draw_tokens(logits, draws_of(plan, self._previous_draws))
        scores = tuple(self._score(flat, work) for work in plan.scores)
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
        """Free the KV pool, end the threads, and forget plans that were not collected."""
        self._queue.clear()
        self._team.close()
        self._host.close()
        self._pool.close()
        self._grid = np.empty((0, 1), dtype=np.int32)

    def _compute(self, flat: FlatStep) -> Floats:
        """All layers; returns the logits [S, V] of the sampled rows."""
        model, work, team = self._model, self._work, self._team
        card, weights = model.card, model.weights
        block_table = flat.block_table.astype(np.int32)
        plan = plan_attention(
            flat.starts,
            flat.num_tokens,
            block_table,
            self._pool.shape,
            card.num_heads,
            self._num_threads,
        )
        rows = flat.last_tokens(flat.plan.sample_rows)
        x = work.take_tokens(len(flat.positions))
        x[:] = weights.embedding.of(flat.tokens(self._previous_draws))
        arguments = (
            self._num_threads,
            team.counter,
            team.arrivals,
            self._gemm,
            *work.model_arguments,
            *work.token_arguments,
            flat.slots,
            weights.cosines,
            weights.sines,
            self._pool.keys,
            self._pool.values,
            *self._attention_arguments(plan, block_table),
            rows,
            *work.head_arguments(len(rows)),
        )
        team.run(lambda thread: step(thread, *arguments), self._num_threads)
        self._num_threads = team.num_threads
        return work.logits(len(rows))

    def _attention_arguments(self, plan: AttentionPlan, block_table: Int32s) -> tuple[Any, ...]:
        return (
            plan.units,
            plan.tokens,
            plan.positions,
            plan.partial_base,
            plan.split_tokens,
            np.zeros((self._model.card.num_layers, CLAIM_WORDS), np.int64),
            plan.merge_bounds,
            block_table,
            self._work.partials(plan.partial_floats),
            self._work.scratch,
        )

    def _score(self, flat: FlatStep, work: ScoreWork) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of prompt tokens, some rows at a time."""
        offset, size = int(flat.offsets[work.row]), self._work.max_head_rows
        scored: list[TokenLogprob] = []
        for begin in range(0, len(work.targets), size):
            targets = work.targets[begin : begin + size]
            rows = np.arange(offset + begin, offset + begin + len(targets))
            scored += score_tokens(self._logits_of(rows), targets, work.num_top)
        return tuple(scored)

    def _logits_of(self, rows: Ints) -> Floats:
        """Logits of rows of the step that was just computed."""
        work, team = self._work, self._team
        arguments = (
            1,
            team.counter,
            team.arrivals,
            self._gemm,
            *work.projection_arguments(rows),
        )
        project(0, *arguments)
        return work.logits(len(rows))
