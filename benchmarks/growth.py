#!/usr/bin/env python3
"""How the CPU engine's cost grows: batch, context, prompt length, model size; and its overhead.

    .venv/bin/python benchmarks/growth.py --name growth

drives the executor without HTTP: a decoding step at batch 1 to 128 (256 tokens of context) and
at contexts of 128 to 8,192 tokens (batch 1 and 16), and whole prompts of 128 to 8,192 tokens in
the engine's usual chunks. Models: the built-in one, and one of Qwen2.5-1.5B's shape with random
weights (Q4_1 layers, Q8_0 head; written to the cache once, 1 GB). Each point is measured several
times; the best and the median are kept. Beside each stands the least time that the machine
needs, from the peaks measured in the same run: reading weights and KV once, or the operations,
whichever takes longer. "overhead" is the share of a whole engine step at batch 16 that is spent
outside the compiled kernels. Points are written as they are measured, and a second call goes on
where the first stopped. report.py draws the plots.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime

import roofline
from run_workloads import HERE, cache_folder, commit, machine, plain, versions

from headway.compute.cpu import kernel_cache


def main() -> int:
    """Measure what is left, write and print."""
    options = parse_arguments()
    kernel_cache.prepare(cache_folder() / "kernels")
    import growth_points as points  # its kernels ask for the folder as they are imported

    target = HERE / "results" / f"{options.name}.json"
    if target.exists() and not options.fresh:
        result = json.loads(target.read_text())
        if result["commit"].removesuffix("-dirty") != commit().removesuffix("-dirty"):
            raise SystemExit(f"{target} is of another commit; another --name, or --fresh")
    else:
        result = {
            "name": options.name,
            "date": datetime.now(UTC).isoformat("T", "seconds"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "command": plain([sys.executable, *sys.argv]),
            "threads": options.threads,
            "roofline": roofline.measure(options.threads),
            "models": {},
        }
    if "missing" in result["roofline"]:
        raise SystemExit(f"no floor without a C compiler: {result['roofline']['missing']}")

    def save() -> None:
        target.write_text(json.dumps(result, indent=1) + "\n")

    if "overhead" not in result:
        result["overhead"] = points.overhead(options.threads)
        print(f"outside the kernels: {result['overhead']}")
        save()
    for name in options.models.split(",") if options.models else points.MODELS:
        points.measure_model(result, name, options, save)
    print(f"wrote {target}")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--models", help="names, with commas; default: both")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batches", type=int, nargs="*", help="default: 1 to 128")
    parser.add_argument("--contexts", type=int, nargs="*", help="default: 128 to 8192")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each point")
    parser.add_argument("--most", type=int, default=200, help="repetitions of a point")
    parser.add_argument("--fresh", action="store_true", help="forget what the file holds")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
