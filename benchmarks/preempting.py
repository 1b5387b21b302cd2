#!/usr/bin/env python3
"""What preempting costs in throughput: nobody stopped, stopped by swap, stopped by recompute.

    .venv/bin/python benchmarks/preempting.py --json benchmarks/results/preempting.json
    .venv/bin/python benchmarks/preempting.py --positions 8192 --short-prompt 384 \
        --json benchmarks/results/preempting-full.json

The same requests in each run, on the CPU engine in this process: enough best-effort ones to keep
all slots busy, and bursts of short requests at fixed times. In the first way the short ones are
best effort too and wait for a slot; in the others they are VIPs, which take the slots of running
sequences beyond those that are kept for VIPs: a fifth or more of all sequences are stopped. With
a host tier a stopped sequence's blocks are kept there, without one they are computed again. The
ways take turns; cost is the throughput that is missing against the first way, medians over the
rounds.

Where memory is ample, a stopped sequence finds its blocks in the prefix cache again. The second
command has a pool of just what the running sequences fill, and VIPs with prompts that need their
victims' blocks: what is computed again there really is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import msgspec
from run_workloads import cache_folder, commit, machine, plain, versions

from headway.app.local_engine import local_engine, run_locally
from headway.app.settings import merge
from headway.core.base.units import Seconds
from headway.core.sim.report import summarize
from headway.core.sim.workload import Mix, Party, Workload, draw, fixed
from headway.core.tenancy.tenant import SloClass
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress

SLOTS, HOST_BYTES = 16, 512 * 2**20
PROMPT, ANSWER = 384, 128  # of the best-effort ones
SHORT_ANSWER = 16
CONTEXT = 1024  # with --positions: the longest request, so that a small pool is allowed
KV_BYTES = 2  # of a value in K or V, bfloat16


class Way(NamedTuple):
    """One way to run it."""

    name: str
    slo_class: SloClass  # of the short requests
    host_bytes: int


WAYS = (
    Way("nobody is stopped", SloClass.INTERNAL, 0),
    Way("swap", SloClass.VIP, HOST_BYTES),
    Way("recompute", SloClass.VIP, 0),
)


def main() -> None:
    """Run all ways in turn, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=60, help="best-effort ones in a run")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between bursts")
    parser.add_argument("--burst", type=int, default=6, help="short requests at a time")
    parser.add_argument("--bursts", type=int, default=6)
    parser.add_argument("--short-prompt", type=int, default=32, help="tokens of theirs")
    parser.add_argument("--positions", type=int, help="of the KV pool (default: ample)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    about: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "load_average": os.getloadavg(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": plain([sys.executable, *sys.argv]),
    }
    runs = []
    for number in range(options.rounds):
        for way in WAYS:
            runs.append(run(way, options, number))
            print(json.dumps(runs[-1]), flush=True)
    rows = summary(runs)
    print(json.dumps(rows, indent=1))
    if options.json:
        options.json.write_text(json.dumps(about | {"rows": rows, "runs": runs}, indent=1) + "\n")


def workload(way: Way, options: argparse.Namespace, number: int) -> Workload:
    """The requests of one round; only their class differs between the ways."""
    rng = Random(number)
    queue = draw(_mix("long", PROMPT, ANSWER, SloClass.INTERNAL), options.requests, rng, label="l")
    short = draw(
        _mix("short", options.short_prompt, SHORT_ANSWER, way.slo_class),
        options.burst * options.bursts,
        rng,
        label="s",
    )
    times = [Seconds(3.0 + options.every * (index // options.burst)) for index in range(len(short))]
    return Workload(
        arrivals=tuple(zip(times, short, strict=True)), queue=tuple(queue), num_clients=SLOTS + 4
    )


def run(way: Way, options: argparse.Namespace, number: int) -> dict[str, Any]:
    """One run on an engine of its own."""
    values = {"max_num_seqs": SLOTS, "kv_host_memory_bytes": way.host_bytes, "log_level": "warning"}
    if options.positions is not None:
        card = open_model(fetch_builtin(ConsoleProgress(), cache_folder())).card
        values["kv_cache_memory_bytes"] = options.positions * card.kv_bytes_per_token(KV_BYTES)
        values["max_model_len"] = CONTEXT
    load = workload(way, options, number)
    with local_engine(merge(values, {}, None)) as engine:
        records, _ = run_locally(engine, load)
        status = engine.core.status()
    figures = summarize(records)
    groups = msgspec.to_builtins(figures)["groups"]
    return {
        "name": way.name,
        "round": number,
        "lost": figures.total.lost,
        "output_tokens_s": figures.output_tokens_s,
        "preempted_share": status.preemptions / len(load.requests),
        "swapped": status.preemptions_swapped,
        "recomputed_tokens": status.computed_prompt_tokens - status.prompt_tokens,
        "short_ttft_p50_s": groups["short"]["ttft"]["p50"],
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of each way, and what it costs against the first within the same round."""
    first = {
        each["round"]: each["output_tokens_s"] for each in runs if each["name"] == WAYS[0].name
    }
    rows = []
    for way in WAYS:
        own = [each for each in runs if each["name"] == way.name]
        row = {
            key: median(each[key] for each in own) for key in own[0] if key not in ("name", "round")
        }
        row["recomputed_tokens"] = int(row["recomputed_tokens"])
        cost = median(1.0 - each["output_tokens_s"] / first[each["round"]] for each in own)
        rows.append({"name": way.name, **row, "cost": cost})
    return rows


def _mix(group: str, prompt: int, answer: int, slo_class: SloClass) -> Mix:
    party = Party(group=group, share=1.0, slo_class=slo_class)
    return Mix(prompt=fixed(prompt), output=fixed(answer), parties=(party,))


if __name__ == "__main__":
    main()
