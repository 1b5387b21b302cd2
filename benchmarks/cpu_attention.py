#!/usr/bin/env python3
"""Time of one layer's attention in the CPU engine, kernel alone.

    .venv/bin/python benchmarks/cpu_attention.py --threads 2 --json out.json

For each case: the best and the median time of a layer in microseconds, GFLOP/s, and GB/s of
K and V (each row's counted, also where rows share). "cached" repeats one layer; "cold" goes
round enough layers that none stays in the cache, which is how a decoding step reads them.
A disturbed machine shows in a median far from the best.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import threading
import time
from dataclasses import asdict, dataclass

import numpy as np

from headway.compute.cpu.attention import attend, merge
from headway.compute.cpu.attention_plan import plan_attention, scratch_floats
from headway.compute.cpu.kvpool import (
    KvPool,
    KvShape,
    aligned_zeros,
    bytes_per_value,
)
from headway.compute.cpu.rope import store_reference
from headway.compute.cpu.settings import KvDtype

COLD_BYTES = 96 << 20


@dataclass(frozen=True)
class Case:
    """Rows that each compute `num_tokens` positions and then hold `context` of them."""

    name: str
    rows: int
    context: int
    num_tokens: int = 1
    shared: int = 0  # positions of a prefix that all rows share


CASES = (
    *(Case("decode", 1, context) for context in (256, 1024, 4096, 8192)),
    Case("decode", 16, 256),
    Case("decode", 16, 1024),
    Case("decode", 64, 256),
    Case("decode, shared prefix", 16, 1096, shared=1024),
    *(Case("prompt", 1, context, num_tokens=512) for context in (512, 1024, 2048, 4096, 8192)),
)


class Bench:
    """A pool of random K and V, a plan, and what each thread needs."""

    def __init__(
        self,
        case: Case,
        heads: tuple[int, int, int],
        threads: int,
        cold: bool,
        dtype: KvDtype = KvDtype.BFLOAT16,
    ) -> None:
        self.num_heads, num_kv_heads, head_dim = heads
        self.heads, self.threads = heads, threads
        width = -(-case.context // 16)
        num_blocks = case.rows * width
        layer_bytes = 4 * num_blocks * num_kv_heads * 16 * head_dim
        rng = np.random.default_rng(0)
        self.pool = KvPool(
            KvShape(
                num_layers=-(-COLD_BYTES // layer_bytes) if cold else 1,
                num_blocks=num_blocks,
                block_size=16,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=dtype,
            )
        )
        slots = np.arange(num_blocks * 16)
        k, v = rng.standard_normal((2, len(slots), num_kv_heads, head_dim), dtype=np.float32)
        store_reference(k, v, slots, self.pool.keys[0], self.pool.values[0])
        self.pool.keys[1:] = self.pool.keys[0]
        self.pool.values[1:] = self.pool.values[0]
        self.table = rng.permutation(num_blocks).reshape(case.rows, width).astype(np.int32)
        self.table[:, : case.shared // 16] = self.table[0, : case.shared // 16]
        self.plan = plan_attention(
            np.full(case.rows, case.context - case.num_tokens),
            np.full(case.rows, case.num_tokens),
            self.table,
            self.pool.shape,
            self.num_heads,
            threads,
        )
        tokens = case.rows * case.num_tokens
        columns = (self.num_heads + 2 * num_kv_heads) * head_dim
        self.queries = rng.standard_normal((tokens, columns), dtype=np.float32)
        self.out = np.empty((tokens, self.num_heads * head_dim), dtype=np.float32)
        self.partials = np.empty(self.plan.partial_floats, dtype=np.float32)

    def attend(self, layer: int, claimed: int, scratch: np.ndarray) -> None:
        """Units of a layer that no other thread claims."""
        plan = self.plan
        attend(
            plan.units,
            plan.tokens,
            plan.positions,
            plan.partial_base,
            self.table,
            self.pool.keys[layer],
            self.pool.values[layer],
            self.queries,
            self.out,
            self.partials,
            scratch,
            self.num_heads,
            claimed,
        )

    def merge(self, thread: int, scratch: np.ndarray) -> None:
        """One thread's part of the merging."""
        plan, bounds = self.plan, self.plan.merge_bounds
        merge(
            plan.split_tokens,
            plan.positions,
            plan.partial_base,
            self.partials,
            self.out,
            scratch,
            self.num_heads,
            self.heads[1],
            bounds[thread],
            bounds[thread + 1],
        )

    def times(self, seconds: float) -> list[float]:
        """Seconds of each repetition of a layer: the slowest thread's, both phases."""
        phases: list[list[float]] = [[] for _ in range(self.threads)]
        barrier = threading.Barrier(self.threads)
        rounds = self._rounds(seconds)
        claims = np.zeros((rounds, 8), np.int64)  # a cache line each

        def work(thread: int) -> None:
            scratch = aligned_zeros((scratch_floats(*self.heads),), np.float32)
            for i in range(rounds):
                layer = i % self.pool.shape.num_layers
                barrier.wait()
                began = time.perf_counter()
                self.attend(layer, claims[i].ctypes.data, scratch)
                between = time.perf_counter()
                barrier.wait()  # its own cost is left out: the engine's barrier is another
                again = time.perf_counter()
                self.merge(thread, scratch)
                phases[thread].append(between - began)
                phases[thread].append(time.perf_counter() - again)

        workers = [threading.Thread(target=work, args=(t,)) for t in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        slowest = [max(both) for both in zip(*phases, strict=True)]
        return [a + b for a, b in zip(slowest[::2], slowest[1::2], strict=True)]

    def _rounds(self, seconds: float) -> int:
        scratch = aligned_zeros((scratch_floats(*self.heads),), np.float32)
        claims = np.zeros((2, 8), np.int64)
        self.attend(0, claims[0].ctypes.data, scratch)
        began = time.perf_counter()
        self.attend(0, claims[1].ctypes.data, scratch)
        return max(5, int(seconds * self.threads / (time.perf_counter() - began)))


def main() -> None:
    """Measure all cases and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--heads", default="9,3,64", help="query heads, KV heads, head_dim")
    parser.add_argument("--kv-cache-dtype", default="bfloat16", choices=list(KvDtype))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--only", default="", help="cases whose name starts so")
    options = parser.parse_args()
    num_heads, num_kv_heads, head_dim = (int(part) for part in options.heads.split(","))
    heads = (num_heads, num_kv_heads, head_dim)
    results = []
    for case in (case for case in CASES if case.name.startswith(options.only)):
        for cold in (False, True) if case.num_tokens == 1 else (False,):
            bench = Bench(case, heads, options.threads, cold, KvDtype(options.kv_cache_dtype))
            times = bench.times(options.seconds)
            best, median = min(times), statistics.median(times)
            first = case.context - case.num_tokens + 1
            pairs = case.rows * sum(range(first, case.context + 1))
            flops = 4 * pairs * num_heads * head_dim
            values = 2 * case.rows * case.context * num_kv_heads * head_dim
            kv_bytes = values * bytes_per_value(bench.pool.shape.dtype, head_dim)
            figures = {
                "cold": cold,
                "best_us": best * 1e6,
                "median_us": median * 1e6,
                "gflops": flops / best / 1e9,
                "gbytes_per_s": kv_bytes / best / 1e9,
            }
            results.append(asdict(case) | figures)
            print(
                f"{case.name:22} rows {case.rows:3} context {case.context:5} "
                f"{'cold' if cold else 'cached':6} best {best * 1e6:8.0f} us  "
                f"median {median * 1e6:8.0f} us  {figures['gflops']:6.1f} GFLOP/s  "
                f"{figures['gbytes_per_s']:5.1f} GB/s"
            )
    if options.json:
        settings = {
            "heads": heads,
            "dtype": options.kv_cache_dtype,
            "threads": options.threads,
            "machine": platform.processor(),
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"settings": settings, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
