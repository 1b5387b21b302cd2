#!/usr/bin/env python3
"""Where does the time of a step of the CPU executor go? The built-in model, phase by phase.

    .venv/bin/python benchmarks/step_profile.py --threads 2 --json out.json

For each case: milliseconds a step in each phase (the mean of the threads), and at the barrier
behind it; what is computed in 10^9 operations a second where that is a matrix product; then
sampling, and the rest: Python around the compiled step. The steps timed are the quickest
quarter, so the parts add up to the step; beside --busy processes the median says more.
--model takes a GGUF file instead of the built-in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen
from typing import Any
from unittest.mock import patch

import numpy as np
from run_workloads import cache_folder, commit, machine

from headway.compute.cpu import kernel_cache
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, StepPlan
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress

BLOCK_SIZE = 16
MOST_TOKENS = 2560
WARM_UP = 3


@dataclass(frozen=True)
class Case:
    """Rows that hold `context` positions each and compute `num_tokens` more."""

    name: str
    rows: int
    context: int
    num_tokens: int = 1
    samples: bool = True


CASES = {
    "b1": Case("decode, 1 row, context 256", 1, 256),
    "b4": Case("decode, 4 rows, context 256", 4, 256),
    "b16": Case("decode, 16 rows, context 256", 16, 256),
    "b64": Case("decode, 64 rows, context 256", 64, 256),
    "p0": Case("chunk of 256 tokens at 0", 1, 0, 256, samples=False),
    "p256": Case("chunk of 256 tokens at 256, the prompt's last", 1, 256, 256),
    "p2048": Case("chunk of 256 tokens at 2,048", 1, 2048, 256, samples=False),
}


class Bench:
    """An executor, its pool full of random numbers, and a plan for each case."""

    def __init__(self, path: str, threads: int, tokens: int) -> None:
        # Not above: the folder of the kernel cache must be set before a kernel is imported.
        from headway.compute.cpu import executor, loading
        from headway.compute.cpu.pairs import to_bits
        from headway.compute.cpu.settings import CpuSettings

        self.module = executor
        card = open_model(path).card
        self.model = loading.load_model(
            card, CpuSettings(threads=threads), lambda _done, _all: None, num_positions=MOST_TOKENS
        )
        width = MOST_TOKENS // BLOCK_SIZE
        num_blocks = 64 * 272 // BLOCK_SIZE
        self.grid = array("i", range(64 * width))
        table = np.frombuffer(self.grid, np.int32).reshape(64, width)
        rng = np.random.default_rng(0)
        for row in range(64):
            table[row] = rng.permutation(num_blocks)[:width]
        table[:, : 272 // BLOCK_SIZE] = rng.permutation(num_blocks).reshape(64, -1)
        engine = ResolvedEngine(
            max_model_len=MOST_TOKENS,
            max_num_seqs=64,
            max_num_batched_tokens=tokens,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            enable_prefix_caching=True,
            max_waiting_requests=1,
            max_waiting_tokens=1,
        )
        self.executor = executor.CpuExecutor(self.model, engine, memoryview(self.grid), width)
        for part in (self.executor.pool.keys, self.executor.pool.values):
            layer = to_bits(rng.standard_normal(part[0].size, dtype=np.float32))
            part[:] = layer.reshape(part[0].shape)
        self.ticks = self.executor.profile()
        self.sampling = 0.0

    def plan(self, case: Case, number: int) -> StepPlan:
        """The case as the engine would plan it."""
        rows = range(case.rows) if case.samples else range(0)
        ids = np.random.default_rng(number).integers(0, 49_152, case.rows * case.num_tokens)
        sampling = Sampling(max_tokens=1, seed=0, temperature=0.0)
        return StepPlan(
            step=number,
            tables=array("i", range(case.rows)),
            starts=array("i", [case.context] * case.rows),
            num_tokens=array("i", [case.num_tokens] * case.rows),
            token_ids=array("i", ids.tolist()),
            sequence_ids=tuple(range(case.rows)),
            sample_rows=array("i", rows),
            positions=array("i", [0 for _ in rows]),
            states=tuple(SamplingState(sampling, 0, (), 0, ()) for _ in rows),
        )

    def step(self, case: Case, number: int) -> tuple[float, float, Any]:
        """Seconds of one step, of its sampling, and the ticks."""
        plan = self.plan(case, number)
        self.ticks[:] = 0
        self.sampling = 0.0
        began = time.perf_counter()
        self.executor.submit(plan)
        self.executor.collect()
        return time.perf_counter() - began, self.sampling, self.ticks.copy()

    def steps(self, case: Case, count: int) -> list[tuple[float, float, Any]]:
        """`count` steps behind some that are not timed."""
        draw = self.module.draw_tokens

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            drawn = draw(*arguments)
            self.sampling = time.perf_counter() - began
            return drawn

        with patch.object(self.module, "draw_tokens", timed):
            return [self.step(case, i) for i in range(WARM_UP + count)][WARM_UP:]

    def operations(self, case: Case) -> dict[str, float]:
        """10^9 of them in each product of a step: a multiplication and an addition a weight."""
        from headway.compute.cpu import phases
        from headway.compute.cpu.pack import COLUMNS
        from headway.compute.cpu.weights import INPUTS, PANELS

        weights = self.model.weights
        layers = (weights.linears[:, :, INPUTS] * weights.linears[:, :, PANELS]).sum(axis=0)
        rows = case.rows * case.num_tokens
        products = ("QKV_PRODUCT", "OUTPUT_PRODUCT", "GATE_UP_PRODUCT", "DOWN_PRODUCT")
        found = {
            phases.PHASES[getattr(phases, name)]: 2e-9 * COLUMNS * rows * float(size)
            for name, size in zip(products, layers, strict=True)
        }
        head = float(weights.head[INPUTS] * weights.head[PANELS])
        head_rows = case.rows if case.samples else 0
        return found | {phases.PHASES[phases.HEAD_PRODUCT]: 2e-9 * COLUMNS * head_rows * head}


def profile(bench: Bench, case: Case, count: int) -> dict[str, Any]:
    """One case, times in milliseconds."""
    from headway.compute.cpu.phases import PHASES, WAIT, WORK

    steps = sorted(bench.steps(case, count), key=lambda each: each[0])
    median = statistics.median(each[0] for each in steps)
    best = steps[: max(1, count // 4)]
    whole = statistics.mean(each[0] for each in best) * 1e3
    sampling = statistics.mean(each[1] for each in best) * 1e3
    ticks = np.mean([each[2].mean(axis=0) for each in best], axis=0) / 1e6
    operations = bench.operations(case)
    found = []
    for number, name in enumerate(PHASES):
        work, wait = float(ticks[WORK + number]), float(ticks[WAIT + number])
        rate = operations.get(name, 0.0) / (work + wait) * 1e3 if work else 0.0
        found.append({"phase": name, "work_ms": work, "wait_ms": wait, "gop_s": rate})
    compiled = sum(each["work_ms"] + each["wait_ms"] for each in found)
    tokens = case.rows * case.num_tokens
    return asdict(case) | {
        "best_ms": steps[0][0] * 1e3,
        "median_ms": median * 1e3,
        "whole_ms": whole,
        "tokens_per_second": tokens / whole * 1e3,
        "compiled_ms": compiled,
        "sampling_ms": sampling,
        "rest_ms": whole - compiled - sampling,
        "phases": found,
    }


def show(result: dict[str, Any]) -> None:
    """Print a case."""
    whole = result["whole_ms"]
    print(
        f"\n{result['name']}: {whole:.2f} ms ({result['tokens_per_second']:.0f} tokens/s), "
        f"best {result['best_ms']:.2f}, median {result['median_ms']:.2f}"
    )
    print(f"  {'phase':<26} {'work ms':>8} {'wait ms':>8} {'share':>6} {'GOP/s':>6}")
    for each in result["phases"]:
        both = each["work_ms"] + each["wait_ms"]
        rate = f"{each['gop_s']:6.0f}" if each["gop_s"] else ""
        print(
            f"  {each['phase']:<26} {each['work_ms']:8.3f} {each['wait_ms']:8.3f} "
            f"{both / whole:6.1%} {rate}"
        )
    waits = sum(each["wait_ms"] for each in result["phases"])
    print(f"  {'(all waits)':<26} {'':8} {waits:8.3f} {waits / whole:6.1%}")
    for name in ("sampling", "rest"):
        took = result[f"{name}_ms"]
        print(f"  {name:<26} {took:8.3f} {'':8} {took / whole:6.1%}", flush=True)


def measure(bench: Bench, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One case, as often as the options say; prints it."""
    once = min(each[0] for each in bench.steps(case, 2))
    count = max(8, min(options.repeats, int(options.seconds / once)))
    result = profile(bench, case, count)
    show(result)
    return result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a GGUF file; the built-in model otherwise")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=4.0, help="most for a case, about")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside it")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    kernel_cache.prepare(cache_folder() / "kernels")
    path = options.model or fetch_builtin(ConsoleProgress(), cache_folder())
    bench = Bench(path, options.threads, options.max_num_batched_tokens)
    results = []
    others = [Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        for name in options.cases:
            results.append(measure(bench, CASES[name], options))
    finally:
        for other in others:
            other.kill()
            other.wait()
    if options.json:
        record = {
            "date": datetime.now(UTC).isoformat("T", "seconds"),
            "machine": machine(),
            "commit": commit(),
            "threads": options.threads,
            "busy": options.busy,
            "model": Path(path).name,
            "results": results,
        }
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
