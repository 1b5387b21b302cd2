#!/usr/bin/env python3
"""How fast are the CPU engine's linear layers? SmolLM2-135M's shapes, random weights.

    python benchmarks/cpu_linear.py --layers Q4_1 --head Q8_0 --threads 2

Every thread computes its share of each of the 30 layers' four matrices, without waiting for
the others, as the panels of a layer are divided in the engine. With --head NONE the head is
left out. Weights are read once a pass (more than the caches hold), so a pass of one row is
bound by memory. Quantizing the activations is timed separately. Prints a line for each number
of rows: milliseconds (best and median), GB/s of weights, GOP/s (two operations a weight and
row). --json writes the same to a file.
"""

import argparse
import json
import platform
import statistics
import subprocess
import threading
import time
from functools import partial

import numpy as np

from headway.compute.cpu.features import detect
from headway.compute.cpu.linear import LinearKernels, kernels_for
from headway.compute.cpu.pack import (
    BLOCK_BYTES,
    FORMAT_OF,
    Arena,
    PackedLinear,
    RawMatrix,
    pack,
    packed_bytes,
)
from headway.compute.cpu.quantize import quantize_rows
from headway.compute.cpu.settings import Isa

LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49152, 576)
NUM_LAYERS = 30
MOST_INPUTS = 1536


def random_matrix(type_name: str, shape: tuple[int, int]) -> RawMatrix:
    """Blocks of random values with scale 1."""
    rng = np.random.default_rng(0)
    outputs, inputs = shape
    format_ = FORMAT_OF[type_name]
    if not format_.is_quantized:
        width = 4 if type_name == "F32" else 2
        return RawMatrix(type_name, np.zeros((outputs, inputs * width), np.uint8))
    size = BLOCK_BYTES[format_]
    blocks = rng.integers(0, 256, (outputs, inputs // 32, size), dtype=np.uint8)
    blocks[..., :4] = np.array([1.0, 0.5], np.float16).view(np.uint8)
    return RawMatrix(type_name, blocks.reshape(outputs, -1))


def build(layers: str, head: str) -> list[PackedLinear]:
    """All matrices of the model in one arena, in the order of use."""
    raw = [random_matrix(layers, shape) for shape in LAYER_SHAPES] * NUM_LAYERS
    if head != "NONE":
        raw.append(random_matrix(head, HEAD_SHAPE))
    arena = Arena(sum(packed_bytes([matrix]) for matrix in raw))
    return [pack([matrix], arena)[0] for matrix in raw]


class Pass:
    """One pass over all matrices for a number of rows."""

    def __init__(self, kernels: LinearKernels, model: list[PackedLinear], rows: int) -> None:
        rng = np.random.default_rng(rows)
        self.rows = rows
        self.x = rng.normal(size=(rows, MOST_INPUTS)).astype(np.float32)
        self.xq = rng.integers(-127, 128, (rows, MOST_INPUTS)).astype(np.int8)
        self.xs = np.ones((rows, MOST_INPUTS // 32), np.float32)
        self.xsum = np.ones((rows, MOST_INPUTS // 16), np.int32)
        self.out = np.zeros((rows, max(p.padded_outputs for p in model)), np.float32)
        x, xq, xs, xsum, out = (
            a.ctypes.data for a in (self.x, self.xq, self.xs, self.xsum, self.out)
        )
        self.calls = [
            (
                kernels.of_format[p.format],
                p.num_panels,
                (p.address, p.num_inputs),
                (
                    xq if p.format.is_quantized else x,
                    p.num_inputs,
                    xs,
                    xsum,
                    rows,
                    out,
                    p.padded_outputs,
                ),
            )
            for p in model
        ]

    def share(self, thread: int, threads: int) -> None:
        """What one of the threads does."""
        for gemm, panels, before, after in self.calls:
            first, end = panels * thread // threads, panels * (thread + 1) // threads
            gemm(*before, first, end, *after)

    def seconds(self, threads: int) -> float:
        """Time of one pass by so many threads."""
        workers = [
            threading.Thread(target=partial(self.share, t, threads)) for t in range(1, threads)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        self.share(0, threads)
        for worker in workers:
            worker.join()
        return time.perf_counter() - start


def quantize_seconds(rows: int) -> float:
    """Best time to quantize [rows, 576] by one thread."""
    x = np.random.default_rng(0).normal(size=(rows, 576)).astype(np.float32)
    xq, xs = np.empty((rows, 576), np.int8), np.empty((rows, 18), np.float32)
    xsum = np.empty((rows, 36), np.int32)
    addresses = [a.ctypes.data for a in (xq, xs, xsum)]
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        quantize_rows(x.ctypes.data, 576, 0, rows, 576, *addresses)
        best = min(best, time.perf_counter() - start)
    return best


def machine() -> dict[str, str]:
    """What the numbers belong to."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {"cpu": names[0] if names else platform.machine(), "commit": commit}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="Q4_1", choices=FORMAT_OF)
    parser.add_argument("--head", default="Q8_0", choices=[*FORMAT_OF, "NONE"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 64, 512])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--isa", choices=[isa.value for isa in Isa], help="instead of the best")
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    isa = detect(Isa(args.isa) if args.isa else None)
    kernels = kernels_for(isa)
    model = build(args.layers, args.head)
    weights = sum(p.num_inputs * p.num_outputs for p in model)
    num_bytes = sum(p.data.nbytes for p in model)
    print(
        f"{isa.value}, {args.threads} threads, {args.layers} + {args.head}, "
        f"{num_bytes / 1e6:.0f} MB"
    )
    results = []
    for rows in args.rows:
        one = Pass(kernels, model, rows)
        one.seconds(args.threads)
        repeats = max(3, args.repeats * 16 // max(rows, 16))
        times = [one.seconds(args.threads) for _ in range(repeats)]
        best, median = min(times), statistics.median(times)
        results.append(
            {
                "rows": rows,
                "best_ms": best * 1e3,
                "median_ms": median * 1e3,
                "worst_ms": max(times) * 1e3,
                "gb_s": num_bytes / best / 1e9,
                "gop_s": 2 * weights * rows / best / 1e9,
                "quantize_us": quantize_seconds(rows) * 1e6,
            }
        )
        print(
            "rows {rows:<4} best {best_ms:8.2f} ms  median {median_ms:8.2f}  {gb_s:5.1f} GB/s "
            "{gop_s:5.0f} GOP/s   quantize 576: {quantize_us:.1f} us".format(**results[-1]),
            flush=True,
        )
    if args.json:
        settings = {k: v for k, v in vars(args).items() if k != "json"} | {"isa": isa.value}
        with open(args.json, "w") as file:
            json.dump(
                {"machine": machine(), "settings": settings, "results": results}, file, indent=1
            )


if __name__ == "__main__":
    main()
