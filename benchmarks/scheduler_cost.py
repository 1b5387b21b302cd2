"""What the scheduler itself costs a step: planning and committing, with nothing computed.

Decodes at several sizes of the running set, with an empty line and with one of many waiting
sequences of mixed classes and tenants. Times are of one thread: the median of the quickest
tenth of the steps, because whatever else runs on the machine only adds to them.

    python benchmarks/scheduler_cost.py [--json PATH]
"""

import argparse
import gc
import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from run_workloads import commit, machine, plain, versions

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.messages.step import StepResult

STEPS = 600


class Letters:
    """A tokenizer of 256 tokens, so that committing includes making text."""

    vocab_size = 257
    eos_ids = (256,)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())

    def min_tokens(self, text: str) -> int:
        return len(text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))

    def is_special(self, token_id: int) -> bool:
        return token_id == 256


def engine(num_seqs: int, num_waiting: int) -> EngineCore:
    """An engine whose slots are all taken by decodes, with so many waiting."""
    core = EngineCore(
        ResolvedEngine(
            max_model_len=4096,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=8192,
            block_size=16,
            num_blocks=num_seqs * 256,
            enable_prefix_caching=True,
            max_waiting_requests=1 << 30,
            max_waiting_tokens=1 << 40,
            itl_target=Seconds(0.15),
            long_prompt=1024,
            long_output=4096,
        ),
        Letters(),
    )
    for i in range(num_seqs):
        add(core, i, slo_class=0, num_prompt=200)
    while (
        any(s.num_outputs == 0 for s in core.scheduler.running.values())
        or len(core.scheduler.running) < num_seqs
    ):
        step(core, 0.0)
    for i in range(num_waiting):
        add(core, num_seqs + i, slo_class=i % 3, num_prompt=50 + 37 * i % 1500)
    return core


def add(core: EngineCore, number: int, *, slo_class: int, num_prompt: int) -> None:
    request = EngineRequest(
        id=f"r{number}",
        prompt=tuple((number + i * i) % 256 for i in range(num_prompt)),
        sampling=Sampling(max_tokens=2500, seed=0, temperature=0.0),
        slo_class=slo_class,
        tenant=f"t{number % 50}",
    )
    core.add(request, Seconds(0.0))


def step(core: EngineCore, now: float) -> tuple[float, float]:
    """Seconds of planning and of committing one step."""
    began = time.perf_counter()
    plan = core.plan(Seconds(now))
    planned = time.perf_counter()
    assert plan is not None
    draws = len(plan.sample_rows)
    result = StepResult(plan.step, array("i", [65] * draws), (None,) * draws)
    before = time.perf_counter()
    core.commit(plan, result, Seconds(now + 0.02))
    return planned - began, time.perf_counter() - before


def measure(num_seqs: int, num_waiting: int) -> dict[str, Any]:
    """Milliseconds of a step: the median of the quickest tenth, and of all."""
    core = engine(num_seqs, num_waiting)
    gc.collect()
    gc.freeze()  # as the replica does
    took = [step(core, 1.0 + 0.02 * i) for i in range(STEPS)]
    quick = sorted(took, key=sum)[: STEPS // 10]
    plan, commit = quick[len(quick) // 2]
    return {
        "running": num_seqs,
        "waiting": num_waiting,
        "plan_ms": round(1e3 * plan, 4),
        "commit_ms": round(1e3 * commit, 4),
        "step_ms": round(1e3 * (plan + commit), 4),
        "step_ms_median": round(1e3 * sorted(map(sum, took))[STEPS // 2], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [measure(n, waiting) for n in (16, 64, 256) for waiting in (0, 1000, 10_000)]
    print(f"{'running':>8} {'waiting':>8} {'plan ms':>9} {'commit ms':>10} {'step ms':>9}")
    for row in rows:
        print(
            f"{row['running']:>8} {row['waiting']:>8} {row['plan_ms']:>9.3f} "
            f"{row['commit_ms']:>10.3f} {row['step_ms']:>9.3f}"
        )
    if args.json:
        about = {
            "question": "what the scheduler costs a step",
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "command": plain([sys.executable, *sys.argv]),
            "steps": STEPS,
        }
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
