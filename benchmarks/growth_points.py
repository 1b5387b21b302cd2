"""Points of growth.py: imported once the folder of compiled kernels is known."""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from random_model import SHAPES, write_random_model
from run_workloads import cache_folder

from headway.app.assembly import warm_up
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.pack import COLUMNS
from headway.compute.cpu.sampler import warm_up as warm_up_sampler
from headway.compute.cpu.settings import CpuSettings
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.settings import EngineSettings, ResolvedEngine, resolve
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.messages.step import SamplingState, StepPlan
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BATCH_CONTEXT = 256
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
CONTEXT_BATCHES = (1, 16)
BUILT_IN = "SmolLM2-135M"
MODELS = (BUILT_IN, *SHAPES)
OVERHEAD_BATCH = 16
OVERHEAD_PROMPT, OVERHEAD_TOKENS = 64, 512
SKIPPED_STEPS = 8  # of the overhead's decoding, while it settles
BLOCK = 16
REPEATED = 1 << 22  # random numbers, which then begin anew


class Costs(NamedTuple):
    """What a model needs, for the floor."""

    weight_bytes: int
    layer_ops: int  # of the matrices, for one token
    head_ops: int
    kv_bytes: int  # of one position
    attention_flops: int  # for one token and one position

    def floor_s(self, peaks: dict[str, Any], tokens: int, drawn: int, positions: int) -> float:
        """Least time of a step, or of several that read the weights once.

        tokens     computed; drawn of them sampled from
        positions  summed over the sequences' tokens: how many positions each attends to
        """
        read = (self.weight_bytes + positions * self.kv_bytes) / (peaks["read_gb_s"] * 1e9)
        gemm = (tokens * self.layer_ops + drawn * self.head_ops) / (peaks["int8_gop_s"] * 1e9)
        attend = positions * self.attention_flops / (peaks["f32_gflop_s"] * 1e9)
        return max(read, gemm + attend)


class Bench:
    """One model, one executor, and sequences whose KV is random numbers."""

    def __init__(self, model: LoadedModel, batch: int, context: int) -> None:
        self.costs = costs_of(model)
        self.engine = engine_for(model, batch, context)
        self.width = -(-context // BLOCK)
        self.grid = np.arange(batch * self.width, dtype=np.int32).reshape(batch, self.width)
        self.executor = CpuExecutor(
            model, self.engine, memoryview(self.grid.reshape(-1)), self.width
        )
        warm_up(self.executor)
        # Pages that nobody wrote are all the same page, which would always be in the cache.
        for data in (self.executor.pool.keys, self.executor.pool.values):
            fill(data)
        self.number = 0

    def decode_s(self, batch: int, context: int) -> float:
        """Time of one decoding step whose tokens attend to `context` positions each."""
        self.number += 1
        sampling = Sampling(max_tokens=2, seed=0, temperature=0.0)
        plan = StepPlan(
            step=self.number,
            tables=array("i", range(batch)),
            starts=array("i", [context - 1] * batch),
            num_tokens=array("i", [1] * batch),
            token_ids=array("i", [100 + row for row in range(batch)]),
            sequence_ids=tuple(range(batch)),
            sample_rows=array("i", range(batch)),
            positions=array("i", [0] * batch),
            states=tuple(SamplingState(sampling, 0, [0], 1, ()) for _ in range(batch)),
        )
        return self._seconds(plan)

    def prompt_s(self, length: int) -> float:
        """Time of one prompt, in chunks of the engine's usual size."""
        took, chunk = 0.0, self.engine.max_num_batched_tokens
        sampling = Sampling(max_tokens=1, seed=0, temperature=0.0)
        for start in range(0, length, chunk):
            size = min(chunk, length - start)
            last = start + size == length
            self.number += 1
            plan = StepPlan(
                step=self.number,
                tables=array("i", [0]),
                starts=array("i", [start]),
                num_tokens=array("i", [size]),
                token_ids=array("i", [100 + i % 1000 for i in range(size)]),
                sequence_ids=(0,),
                sample_rows=array("i", [0] if last else []),
                positions=array("i", [0] if last else []),
                states=(SamplingState(sampling, 0, [0], 1, ()),) if last else (),
            )
            took += self._seconds(plan)
        return took

    def point(
        self, kind: str, batch: int, context: int, peaks: dict[str, Any], options: Any
    ) -> dict[str, float]:
        """One measured point and its floor."""
        if kind == "decode":
            found = times(lambda: self.decode_s(batch, context), options.seconds, options.most)
            floor = self.costs.floor_s(peaks, batch, batch, batch * context)
        else:
            found = times(lambda: self.prompt_s(context), options.seconds, options.most)
            floor = prompt_floor_s(self.costs, peaks, context, self.engine.max_num_batched_tokens)
        return {"batch": batch, "context": context, **found, "floor_ms": floor * 1e3}

    def close(self) -> None:
        """Free everything."""
        self.executor.close()

    def _seconds(self, plan: StepPlan) -> float:
        began = time.perf_counter()
        self.executor.submit(plan)
        self.executor.collect()
        return time.perf_counter() - began


def loaded(path: str, card: ModelCard, threads: int) -> LoadedModel:
    """The model's weights; `path` is in the card."""
    print(f"loading {Path(path).name}", flush=True)
    return load_model(card, CpuSettings(threads=threads), lambda _done, _total: None)


def engine_for(model: LoadedModel, batch: int, context: int) -> ResolvedEngine:
    """The engine's defaults, with room for so many sequences."""
    card = model.card
    room = batch * -(-context // BLOCK) * BLOCK
    settings = EngineSettings(
        max_model_len=context,
        max_num_seqs=batch,
        kv_cache_memory_bytes=room * card.kv_bytes_per_token(model.bytes_per_kv_value),
    )
    return resolve(settings, card, 1 << 40, model.bytes_per_kv_value)


def fill(data: np.ndarray) -> None:
    """Random bfloat16 numbers of about one in size, the same in every layer.

    data  [layers, ...], its memory in whatever order the pool keeps it
    """
    rng = np.random.default_rng(0)
    some = rng.standard_normal(min(data[0].size, REPEATED), dtype=np.float32)
    if data.dtype == np.uint16:
        bits = (some.view(np.uint32) >> 16).astype(np.uint16)
    else:
        bits = np.clip(some * 40, -127, 127).astype(np.int8).view(data.dtype)
    layer = np.resize(bits, data[0].shape)
    for index in range(len(data)):
        data[index] = layer


def costs_of(model: LoadedModel) -> Costs:
    """From the packed matrices, as the steps read them."""
    card = model.card
    matrices = [
        each.num_inputs * -(-each.num_outputs // COLUMNS) * COLUMNS for each in model.weights.packed
    ]
    return Costs(
        weight_bytes=sum(each.data.nbytes for each in model.weights.packed),
        layer_ops=2 * sum(matrices[:-1]),
        head_ops=2 * matrices[-1],
        kv_bytes=card.kv_bytes_per_token(model.bytes_per_kv_value),
        attention_flops=4 * card.num_layers * card.num_heads * card.head_dim,
    )


def times(work: Callable[[], float], seconds: float, most: int) -> dict[str, float]:
    """Best and median of as many repetitions as fit into the time.

    The first is not counted, unless it alone took longer than that.
    """
    first = work()
    count = max(3, min(most, int(seconds / max(first, 1e-6))))
    each = [first] if first > seconds else [work() for _ in range(count)]
    return {
        "best_ms": min(each) * 1e3,
        "median_ms": statistics.median(each) * 1e3,
        "worst_ms": max(each) * 1e3,
        "repeats": len(each),
    }


def wanted(kind: str, batches: Sequence[int], contexts: Sequence[int]) -> list[tuple[int, int]]:
    """(batch, context) of every point of a kind."""
    if kind == "prefill":
        return [(1, context) for context in contexts]
    points = [(batch, BATCH_CONTEXT) for batch in batches]
    points += [(batch, context) for batch in CONTEXT_BATCHES for context in contexts]
    return list(dict.fromkeys(point for point in points if point[0] <= max(batches)))


def measure_model(
    result: dict[str, Any], name: str, options: argparse.Namespace, save: Callable[[], None]
) -> None:
    """All points of one model that the file does not have yet."""
    found = result["models"].setdefault(name, {"decode": [], "prefill": []})
    left = {
        kind: [
            point
            for point in wanted(kind, options.batches or BATCHES, options.contexts or CONTEXTS)
            if point not in [(each["batch"], each["context"]) for each in found[kind]]
        ]
        for kind in ("decode", "prefill")
    }
    if not any(left.values()):
        return
    path, card = model_file(name)
    groups: dict[int, list[tuple[str, int, int]]] = {}
    for kind, points in left.items():
        for batch, context in points:
            groups.setdefault(batch if kind == "decode" else 1, []).append((kind, batch, context))
    model = loaded(path, card, options.threads)
    found["costs"] = costs_of(model)._asdict()
    for batch, points in sorted(groups.items()):
        bench = Bench(model, batch, max(context for _, _, context in points))
        for kind, _, context in points:
            point = bench.point(kind, batch, context, result["roofline"], options)
            found[kind].append(point)
            print(
                f"{name} {kind:<7} batch {batch:<4} context {context:<5} "
                f"{point['best_ms']:9.2f} ms  floor {point['floor_ms']:9.2f}",
                flush=True,
            )
            save()
        bench.close()


def prompt_floor_s(costs: Costs, peaks: dict[str, Any], length: int, chunk: int) -> float:
    """Least time of a prompt: the weights are read once a chunk, KV too."""
    total = 0.0
    for start in range(0, length, chunk):
        size = min(chunk, length - start)
        read = (costs.weight_bytes + (start + size) * costs.kv_bytes) / (peaks["read_gb_s"] * 1e9)
        pairs = sum(range(start + 1, start + size + 1))
        gemm = (size * costs.layer_ops) / (peaks["int8_gop_s"] * 1e9)
        attend = pairs * costs.attention_flops / (peaks["f32_gflop_s"] * 1e9)
        total += max(read, gemm + attend)
    return total


def model_file(name: str) -> tuple[str, ModelCard]:
    """Where a model's file is, made if need be, and its card."""
    if name == BUILT_IN:
        path = fetch_builtin(ConsoleProgress(), cache_folder())
        return str(path), open_model(str(path)).card
    card = write_random_model(name, cache_folder() / "benchmarks")
    return card.path, card


def overhead(threads: int) -> dict[str, float]:
    """Share of an engine step at batch 16 outside the kernels, on the built-in model.

    Planning, flattening, sampling, text and events are outside; what runs inside the
    threads' calls, and waking the threads, is inside.
    """
    path, card = model_file(BUILT_IN)
    model = loaded(path, card, threads)
    context = OVERHEAD_PROMPT + OVERHEAD_TOKENS
    engine = engine_for(model, OVERHEAD_BATCH, context)
    core = EngineCore(engine, build_tokenizer(open_model(path)), model=card.name)
    executor = CpuExecutor(model, engine, core.grid.view, core.grid.width)
    warm_up_sampler()
    warm_up(executor)
    inside = [0.0]
    team = executor._team
    original = team.run

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            inside[0] += time.perf_counter() - began

    team.run = timed
    rng = np.random.default_rng(0)
    for number in range(OVERHEAD_BATCH):
        core.add(
            EngineRequest(
                id=f"r{number}",
                prompt=tuple(int(i) for i in rng.integers(100, 20000, OVERHEAD_PROMPT)),
                sampling=Sampling(
                    max_tokens=OVERHEAD_TOKENS, seed=number, temperature=0.0, ignore_eos=True
                ),
            ),
            Seconds(time.perf_counter()),
        )
    shares, steps = [], []
    while core.has_work():
        inside[0], began = 0.0, time.perf_counter()
        plan = core.plan(Seconds(began))
        assert plan is not None
        executor.submit(plan)
        core.commit(plan, executor.collect(), Seconds(time.perf_counter()))
        took = time.perf_counter() - began
        if len(plan.tables) == OVERHEAD_BATCH == len(plan.token_ids):
            steps.append(took)
            shares.append(1 - inside[0] / took)
    executor.close()
    if len(steps) <= SKIPPED_STEPS:
        raise SystemExit(f"only {len(steps)} steps decoded {OVERHEAD_BATCH} sequences together")
    return {
        "batch": OVERHEAD_BATCH,
        "steps": len(steps[SKIPPED_STEPS:]),
        "step_ms": statistics.median(steps[SKIPPED_STEPS:]) * 1e3,
        "outside_kernels_share": statistics.median(shares[SKIPPED_STEPS:]),
    }
