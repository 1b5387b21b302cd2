#!/usr/bin/env python3
"""Compares `headway serve` with other servers in one sitting, on the same model.

    PEERS_DIR=~/peers .venv/bin/python benchmarks/versus_peers.py --name versus-peers \
        --peers llama.cpp:q8_0,llama.cpp:bf16,openvino:int8 --rounds 3

In each round every server is started anew, in turn, put under the workloads of load.py
with that round's seed, and stopped: A B C, A B C, ... so that slow phases of the machine
meet all of them. A run in which other processes used more than 0.2 cores is marked as
disturbed and left out of the medians. The ratios are of medians; their range is over the
rounds. Peers are set up by peers.sh at their first start, which takes minutes: start each
once before (`peers.sh NAME VARIANT`), so that building does not fall into a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from run_workloads import (
    HERE,
    cache_folder,
    commit,
    free_port,
    machine,
    plain,
    running,
    versions,
    write_tokenizer,
)

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.progress import ConsoleProgress

OURS = "headway"
DISTURBED = 0.2  # cores that others used
START_S = 600.0
# (workload, figure, its group, whether more is better)
FIGURES = (
    ("w1", "output_tok_s", None, True),
    ("w2", "output_tok_s", None, True),
    ("w3", "output_tok_s", None, True),
    ("w3", "ttft_p50_ms", None, False),
    ("w4", "itl_p99_ms", "stream", False),
    ("w4", "ttft_p50_ms", "long", False),
    ("w1", "server_rss_peak_mib", None, False),
)


class Contender(NamedTuple):
    """One server of the comparison."""

    name: str
    command: tuple[str, ...]  # the port is appended

    @property
    def is_ours(self) -> bool:
        """Whether it is the one that is compared with the others."""
        return self.name == OURS


def main() -> int:
    """Run all rounds, print the table, write the file."""
    options = parse_arguments()
    target = HERE / "results" / f"{options.name}.json"
    model = Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    tokenizer = write_tokenizer(model, cache_folder() / "benchmarks")
    contenders = [ours(), *(peer(spec) for spec in options.peers.split(",") if spec)]
    began = datetime.now(UTC).isoformat("T", "seconds")
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contenders}
    for number in range(options.rounds):
        for each in contenders:
            print(f"-- round {number + 1}: {each.name}", flush=True)
            runs[each.name].append(one_run(each, options.workloads, number, tokenizer))
    result = {
        "name": options.name,
        "date": began,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": model.name,
        "command": plain([sys.executable, *sys.argv]),
        "rounds": options.rounds,
        "servers": {each.name: plain(list(each.command)) for each in contenders},
        "comparison": compare(runs),
        "runs": runs,
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    print_table(result["comparison"])
    print(f"wrote {target}")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--peers", default="llama.cpp:q8_0,openvino:int8", help="NAME:VARIANT,...")
    parser.add_argument("--workloads", default="w1,w2,w3,w4")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def ours() -> Contender:
    """This checkout's server with its defaults."""
    program = Path(sys.executable).with_name("headway")
    return Contender(OURS, (str(program), "serve", "--host", "127.0.0.1", "--port"))


def peer(spec: str) -> Contender:
    """A peer as peers.sh names it."""
    name, _, variant = spec.partition(":")
    return Contender(spec, ("bash", str(HERE / "peers.sh"), name, variant))


def one_run(
    contender: Contender, workloads: str, seed: int, tokenizer: Path
) -> dict[str, dict[str, Any]]:
    """A fresh server under all workloads; figures by workload, and its start's seconds."""
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    figures = tokenizer.with_name(f"versus-{os.getpid()}.json")
    command = [*contender.command, str(port)]
    began = time.monotonic()
    health = "/ready" if contender.is_ours else "/health"
    with running(command, base_url, START_S, health) as process:
        start_s = time.monotonic() - began
        served = served_name(base_url)
        subprocess.run(
            [
                *(sys.executable, str(HERE / "load.py"), "--base-url", base_url),
                *("--model", served, "--tokenizer", str(tokenizer), "--workloads", workloads),
                *("--repetitions", "1", "--seed", str(seed), "--server-pid", str(process.pid)),
                *("--label", contender.name, "--json", str(figures)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    found: dict[str, Any] = json.loads(figures.read_text())["workloads"]
    figures.unlink()
    shown = {name: each["repetitions"][0] for name, each in found.items()}
    shown["start"] = {"ready_s": start_s, "errors": 0}
    for name, each in shown.items():
        if each["errors"]:
            print(f"   {name}: {each['errors']} errors: {each.get('first_errors')}", flush=True)
        elif "output_tok_s" in each:
            print(f"   {name}: {each['output_tok_s']:.0f} tok/s", flush=True)
    return shown


def served_name(base_url: str) -> str:
    """The name to ask for; peers that list none take any."""
    try:
        return str(httpx.get(f"{base_url}/v1/models").json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError):
        return "model"


def compare(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each figure: every server's median and range, and ours against the best peer."""
    rows = []
    for workload, figure, group, more in FIGURES:
        medians = {}
        for name, rounds in runs.items():
            values = [v for each in rounds if (v := value_of(each, workload, figure, group))]
            if values:
                medians[name] = {
                    "median": statistics.median(values),
                    "min": min(values),
                    "max": max(values),
                    "rounds": len(values),
                }
        row = {"workload": workload, "figure": figure, "group": group, "servers": medians}
        peers = {name: each["median"] for name, each in medians.items() if name != OURS}
        if OURS in medians and peers:
            best = (max if more else min)(peers, key=lambda name: peers[name])
            mine = medians[OURS]["median"]
            row |= {"best_peer": best, "ours_over_best": mine / peers[best]}
        rows.append(row)
    return rows


def value_of(run: dict[str, Any], workload: str, figure: str, group: str | None) -> float | None:
    """A figure of one run; None when it failed, was disturbed or is not there."""
    figures = run.get(workload)
    if not figures or figures["errors"] or figures.get("other_cores_used", 0.0) > DISTURBED:
        return None
    value = (figures["groups"][group] if group else figures).get(figure)
    return None if value is None else float(value)


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line a figure."""
    for row in rows:
        name = " ".join(filter(None, (row["workload"], row["group"], row["figure"])))
        cells = [f"{server} {each['median']:.1f}" for server, each in row["servers"].items()]
        ratio = f"   {row['ours_over_best']:.2f} x {row['best_peer']}" if "best_peer" in row else ""
        print(f"{name:<28} {'   '.join(cells)}{ratio}")


if __name__ == "__main__":
    sys.exit(main())
