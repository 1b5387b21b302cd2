#!/usr/bin/env python3
"""Chunks that follow `--itl-target` against chunks of one size, under W4.

    .venv/bin/python benchmarks/itl_target.py --name itl-target

W4: eight streams, and a prompt of 4,000 tokens every 3 s, four of them: with smaller chunks the
streams end sooner, and with them a workload without a limit, so that fewer long prompts would wait
for each other. Two questions. Does a stream wait no
longer than the target for its next token, in 99 % of its steps? And is the long prompts' first
token no later than with the fixed chunk that keeps the same gap: of those whose P99 gap is within
the target, the one with the shortest first token? A server of its own for each run; the settings
take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from run_workloads import (
    HERE,
    cache_folder,
    commit,
    free_port,
    machine,
    plain,
    run_load,
    running,
    versions,
    write_tokenizer,
)

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.progress import ConsoleProgress

TARGET_S = 0.15
FOLLOWS = "follows the target"
STREAM, LONG = "stream", "long"
LONG_PROMPTS = 4  # as many as every setting gets to send


def main() -> int:
    """Run all settings in turn, print and write; 1 when a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 96, 128])
    options = parser.parse_args()
    about: dict[str, Any] = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "load_average": os.getloadavg(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": plain([sys.executable, *sys.argv]),
    }
    settings = {FOLLOWS: ["--itl-target", str(TARGET_S)]}
    settings |= {
        f"fixed at {size}": ["--itl-target", "0", "--max-num-batched-tokens", str(size + 8)]
        for size in options.chunks  # 8 rows are the streams'
    }
    runs = []
    for number in range(options.rounds):
        for name, flags in settings.items():
            runs.append({"name": name, "round": number} | one_run(flags))
            print(json.dumps(runs[-1]), flush=True)
    rows = [medians(name, runs) for name in settings]
    verdict = judge(rows)
    print(json.dumps([*rows, verdict], indent=1))
    result = about | {"target_ms": 1000 * TARGET_S, "rows": rows, "verdict": verdict, "runs": runs}
    (HERE / "results" / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if verdict["gap_is_kept"] and verdict["is_no_later"] else 1


def one_run(flags: list[str]) -> dict[str, Any]:
    """W4 once against a server with these flags."""
    model = Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    tokenizer = write_tokenizer(model, cache_folder() / "benchmarks")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    headway = str(Path(sys.executable).with_name("headway"))
    command = [headway, "serve", "--port", str(port), "--log-level", "warning", *flags]
    more = ("--long-prompts", str(LONG_PROMPTS))
    load = argparse.Namespace(workloads="w4", repetitions=1, name="w4", more=more)
    with running(command, url, 300.0) as process:
        served = httpx.get(f"{url}/v1/models").raise_for_status().json()["data"][0]["id"]
        figures, _ = run_load(load, url, served, tokenizer, process.pid)
    groups = figures["workloads"]["w4"]["median"]["groups"]
    return {
        "gap_p50_ms": groups[STREAM]["itl_p50_ms"],
        "gap_p99_ms": groups[STREAM]["itl_p99_ms"],
        "long_ttft_p50_ms": groups[LONG]["ttft_p50_ms"],
        "long_prompts": groups[LONG]["requests"],
        "errors": groups[STREAM]["errors"] + groups[LONG]["errors"],
    }


def medians(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One setting over its rounds."""
    own = [run for run in runs if run["name"] == name]
    return {"name": name} | {
        key: median(run[key] for run in own) for key in own[0] if key not in ("name", "round")
    }


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Both answers, with what they rest on."""
    ours, *fixed = rows
    bound = max(ours["gap_p99_ms"], 1000 * TARGET_S)
    equal = [row for row in fixed if row["gap_p99_ms"] <= bound]
    best = min(equal, key=lambda row: row["long_ttft_p50_ms"], default=None)
    return {
        "gap_is_kept": ours["gap_p99_ms"] <= 1000 * TARGET_S,
        "best_fixed": best and best["name"],
        "long_ttft_over_best_fixed": best and ours["long_ttft_p50_ms"] / best["long_ttft_p50_ms"],
        "prompts_are_the_same": len({row["long_prompts"] for row in rows}) == 1,
        "is_no_later": best is None or ours["long_ttft_p50_ms"] <= best["long_ttft_p50_ms"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
