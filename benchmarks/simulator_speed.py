#!/usr/bin/env python3
"""How many sequence-steps a second the simulator does on one core, with the real scheduler.

    .venv/bin/python benchmarks/simulator_speed.py --json speed.json

A sequence-step is one row of one step: with 64 running sequences a step is 64 of them.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from pathlib import Path
from random import Random

from run_workloads import commit, machine, plain, versions

from headway.core.engine.settings import ResolvedEngine
from headway.core.sim.costs import StepTable
from headway.core.sim.run import simulate
from headway.core.sim.workload import Lengths, Mix, closed_loop

COST = StepTable(
    rows=((1, 0.01), (64, 0.04)), decode_pair_s=1e-7, prefill_token_s=2e-4, prefill_pair_s=1e-8
)


def settings(num_slots: int) -> ResolvedEngine:
    """An engine with that many slots, and blocks enough for them."""
    return ResolvedEngine(
        max_model_len=4096,
        max_num_seqs=num_slots,
        max_num_batched_tokens=512,
        block_size=16,
        num_blocks=num_slots * 64,
        enable_prefix_caching=True,
        max_waiting_requests=100_000,
        max_waiting_tokens=100_000_000,
    )


def run(num_slots: int, num_requests: int) -> dict[str, float]:
    """One run; the figures of the clock."""
    mix = Mix(prompt=Lengths(low=64, high=1500), output=Lengths(low=16, high=256))
    workload = closed_loop(mix, num_requests, 2 * num_slots, Random(0))
    began = time.process_time()  # of this core alone, whatever else runs
    result = simulate(workload, settings(num_slots), COST)
    took = time.process_time() - began
    rate = result.steps.sequence_steps / took
    print(
        f"{num_slots:4} slots  {result.steps.num_steps:6} steps  "
        f"{result.steps.sequence_steps:8} sequence-steps  {took:6.2f} s  {rate:9,.0f} a second  "
        f"{1000 * took / result.steps.num_steps:.3f} ms a step"
    )
    return {
        "slots": num_slots,
        "requests": num_requests,
        "steps": result.steps.num_steps,
        "sequence_steps": result.steps.sequence_steps,
        "seconds": took,
        "sequence_steps_s": rate,
        "ms_a_step": 1000 * took / result.steps.num_steps,
    }


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    profiler = cProfile.Profile() if options.profile else None
    if profiler:
        profiler.enable()
    runs = [run(slots, options.requests) for slots in options.slots]
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    if options.json:
        about = {"commit": commit(), "machine": machine(), "versions": versions()}
        about["command"] = plain([sys.executable, *sys.argv])
        options.json.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
