#!/usr/bin/env python3
"""Does the simulator tell the truth? Real runs of W1 to W5, replayed and predicted.

    .venv/bin/python benchmarks/simulation_truth.py --json benchmarks/results/simulation-truth.json

Each workload runs --repetitions times, each on a server of its own, whose engine writes down its
steps. Then

    replay      the recorded arrivals with the recorded step times: are the same steps planned,
                and does every request get its tokens at the same time?        within 2 %
    prediction  step costs fitted on W1 and W2 only, against W3 to W5:
                P50 and P99 of TTFT, ITL and E2E                               within 15 %

A measured figure is the median of its repetitions, a predicted one that of some simulations for
each of them: a P99 of few requests, and a machine's slower minutes, are chance. Both compare
at the engine, so that HTTP is not part of it; what the clients saw is in the JSON beside it. Run
it on a quiet machine; a repetition takes about three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
import msgspec
from run_workloads import (
    HERE,
    cache_folder,
    commit,
    free_port,
    machine,
    plain,
    running,
    write_tokenizer,
)

from headway.app.bench_show import table
from headway.core.base.units import Seconds
from headway.core.cost.arithmetic import Arithmetic, arithmetic_of
from headway.core.engine.settings import ResolvedEngine
from headway.core.sim.costs import (
    MeasuredStep,
    RecordedSteps,
    SpreadCost,
    StepTable,
)
from headway.core.sim.fit import fit, relative_error
from headway.core.sim.report import Outcome, Record, percentile, summarize
from headway.core.sim.run import simulate
from headway.core.sim.workload import Planned, Workload, benchmark
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress

NAMES = ("w1", "w2", "w3", "w4", "w5")
FITTED = ("w1", "w2")
WARM_UP = 16  # requests that load.py sends before a workload
CLIENTS = 16  # of w2
SIMULATIONS = 5  # for each repetition
REPLAY_LIMIT, PREDICTION_LIMIT = 0.02, 0.15
TINY = 1e-7  # seconds: after a step's beginning, and for nothing else


@dataclass(frozen=True)
class Real:
    """One repetition of a workload as it really went."""

    name: str
    repetition: int
    settings: ResolvedEngine
    requests: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    client: dict[str, Any]  # load.py's figures

    @property
    def measured_steps(self) -> list[MeasuredStep]:
        """The steps for a replay."""
        found = []
        for step, after in zip(self.steps, [*self.steps[1:], None], strict=True):
            pause = after["began"] - step["ended"] if after and step["more"] else 0.0
            found.append(_measured(step, step["ended"] - step["began"], max(0.0, pause)))
        return found

    @property
    def own_requests(self) -> list[dict[str, Any]]:
        """Without the warm-up."""
        return sorted(self.requests, key=lambda r: r["arrived"])[WARM_UP:]

    @property
    def own_steps(self) -> list[MeasuredStep]:
        """Without the warm-up, in which a process does many things for the first time.

        With their pauses, which a simulation has none of beside its steps.
        """
        began = self.own_requests[0]["arrived"]
        return [
            msgspec.structs.replace(step, seconds=step.seconds + step.pause, pause=0.0)
            for step, raw in zip(self.measured_steps, self.steps, strict=True)
            if raw["began"] >= began
        ]

    @property
    def records(self) -> list[Record]:
        """What happened, as a simulation would report it."""
        return [
            Record(
                r["id"],
                _group(r),
                r["arrived"],
                token_times=r["token_times"],
                finished=r["finished"],
                outcome=Outcome.ANSWERED,
            )
            for r in self.own_requests
            if is_whole(r)
        ]


def is_whole(request: dict[str, Any]) -> bool:
    """True when it was answered to its end; a replay has no cancels."""
    return request["finished"] is not None and not request["cancelled"]


def _measured(step: dict[str, Any], seconds: float, pause: float) -> MeasuredStep:
    work = {k: v for k, v in step.items() if k.startswith(("decode_", "prefill_"))}
    return MeasuredStep(**work, seconds=seconds, pause=pause)


def _group(request: dict[str, Any]) -> str:
    return group_of(len(request["prompt"]))


def group_of(prompt_tokens: int) -> str:
    """W4's two kinds of requests; all others are of the second."""
    return "long" if prompt_tokens > 2000 else "stream"


def real_of(
    name: str, repetition: int, options: argparse.Namespace, capacity: float | None
) -> Real:
    """One workload, run now, or read from --recordings when it was run before."""
    kept = options.recordings
    if kept is not None:
        kept /= f"{name}.json" if repetition == 1 else f"{name}-{repetition}.json"
    if kept is None or not kept.exists():
        content = run_real(name, repetition, options, capacity)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(content))
    else:
        content = json.loads(kept.read_text())
    settings = msgspec.convert(content["settings"], ResolvedEngine)
    requests, steps, client = (content[key] for key in ("requests", "steps", "client"))
    return Real(name, repetition, settings, requests, steps, client)


def model_of(options: argparse.Namespace) -> Path:
    """The model's file."""
    return options.model or Path(fetch_builtin(ConsoleProgress(), cache_folder()))


def run_real(
    name: str, repetition: int, options: argparse.Namespace, capacity: float | None
) -> dict[str, Any]:
    """Run one workload on a fresh server: its recording, and what its client measured."""
    model = model_of(options)
    tokenizer = write_tokenizer(model, cache_folder() / "benchmarks")
    with tempfile.TemporaryDirectory() as folder:
        recording, figures = Path(folder, "recording.json"), Path(folder, "figures.json")
        port = free_port()
        command = [sys.executable, str(HERE / "recorded_server.py"), str(recording), "serve"]
        command += [
            "--port",
            str(port),
            "--log-level",
            "warning",
            "--model",
            str(model),
            *options.server_options,
        ]
        url = f"http://127.0.0.1:{port}"
        with running(command, url, 300.0):
            served = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
            load = [sys.executable, str(HERE / "load.py"), "--base-url", url, "--model", served]
            load += ["--tokenizer", str(tokenizer), "--workloads", name, "--repetitions", "1"]
            seed = options.seed + repetition - 1
            load += ["--seed", str(seed), "--json", str(figures)]
            load += ["--overload-seconds", str(options.overload_seconds)]
            if capacity is not None:
                load += ["--capacity", str(capacity)]
            subprocess.run(load, check=True)
        content: dict[str, Any] = json.loads(recording.read_text())
        content["client"] = json.loads(figures.read_text())["workloads"][name]["median"]
    return content


def replay(real: Real) -> dict[str, Any]:
    """The same arrivals with the same step times."""
    start = min(request["arrived"] for request in real.requests)
    arrivals = sorted(
        (delivered(real, request) - start, number, request)
        for number, request in enumerate(real.requests)
    )
    workload = Workload(
        arrivals=tuple((Seconds(when), planned(request)) for when, _, request in arrivals)
    )
    cost = RecordedSteps(real.measured_steps)
    result = simulate(workload, real.settings, cost)
    found = {record.id: record for record in result.records}
    ttft, e2e = [], []
    for request in filter(is_whole, real.requests):
        arrived = request["arrived"] - start
        record = found[request["id"]]
        for errors, simulated, really in (
            (ttft, record.token_times[0], request["token_times"][0] - start),
            (e2e, record.finished, request["finished"] - start),
        ):
            assert simulated is not None
            errors.append(abs((simulated - arrived) / (really - arrived) - 1.0))
    return {
        "requests": len(ttft),
        "cancelled": len(real.requests) - len(ttft),  # by a client that waited long enough
        "steps": len(real.steps),
        "steps_that_differ": cost.mismatches + abs(len(real.steps) - cost.num_taken),
        "ttft_error_max": max(ttft),
        "e2e_error_max": max(e2e),
    }


def delivered(real: Real, request: dict[str, Any]) -> float:
    """When the request reached the engine: in time for its first chance, and not before.

    An idle engine wakes some 0.1 ms after an arrival; a simulated one at once.
    """
    index = request["before_step"]
    if index >= len(real.steps):
        return float(request["arrived"])
    began = real.steps[index]["began"]
    before = real.steps[index - 1] if index else None
    if before is None or not before["more"]:
        return float(began)
    return float(min(max(request["arrived"], before["began"] + TINY), began))


def planned(request: dict[str, Any]) -> Planned:
    """A recorded request, to be sent again."""
    return Planned(
        id=request["id"],
        prompt=tuple(request["prompt"]),
        output_tokens=len(request["token_times"]) if is_whole(request) else request["max_tokens"],
        max_tokens=request["max_tokens"],
    )


def costs_of(reals: Sequence[Real], model: Arithmetic) -> tuple[StepTable, dict[str, float]]:
    """A table of what the steps of some workloads took, pauses included."""
    steps = [step for real in reals for step in real.own_steps]
    found = fit(steps, model)
    errors = sorted(abs(relative_error(found, step)) for step in steps)
    return found, {"p50": percentile(errors, 50), "p90": percentile(errors, 90)}


def think_of(reals: Sequence[Real]) -> float:
    """Seconds from an answer's end to the same client's next arrival, with W2's clients.

    Each arrival after the first of all clients belongs to an end, in order.
    """
    found = []
    for real in reals:
        own = real.own_requests
        ends = sorted(request["finished"] for request in own)
        found += [r["arrived"] - end for r, end in zip(own[CLIENTS:], ends, strict=False)]
    return median(found)


def predict(real: Real, cost: StepTable, think: float, seed: str) -> list[Record]:
    """The workload under the simulated clock; only W5's times of sending are the real ones."""
    workload = benchmark(real.name, Random(seed), think=think) if real.name != "w5" else sent(real)
    spread = SpreadCost(cost, Random(f"{seed}/spread"))
    records = simulate(workload, real.settings, spread).records
    for record in records:
        record.group = group_of(record.prompt_tokens)
    return records


def sent(real: Real) -> Workload:
    """The requests as they arrived, whatever came of them."""
    own = real.own_requests
    start = own[0]["arrived"]
    return Workload(arrivals=tuple((Seconds(r["arrived"] - start), planned(r)) for r in own))


def figures_of(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """P50 and P99 of each latency, by group and name; W4's two kinds of requests apart."""
    found = {}
    for group in sorted({record.group for record in records}):
        total = summarize([record for record in records if record.group == group]).total
        for name in ("ttft", "itl", "e2e"):
            for label in ("p50", "p99"):
                found[group, f"{name} {label}"] = getattr(getattr(total, name), label)
    return found


def compare(
    name: str, measured: Sequence[Sequence[Record]], predicted: Sequence[Sequence[Record]]
) -> list[dict[str, Any]]:
    """Each figure of a workload on both sides.

    Runs of W2 to W4 are the same to the token, so a figure is that of the requests of all of them:
    one run has few, and where they fall into two clusters its median is in either. Runs of W5
    arrive at rates of their own, so there it is the median of the runs' figures.
    """
    sides = [[figures_of(run) for run in runs] for runs in (measured, predicted)]
    together = [
        figures_of([record for run in runs for record in run]) for runs in (measured, predicted)
    ]
    rows = []
    for group, figure in sides[0][0]:
        truths, guesses = ([run[group, figure] for run in side] for side in sides)
        truth, guess = (all_runs[group, figure] for all_runs in together)
        if name == "w5":
            truth, guess = median(truths), median(guesses)
        row: dict[str, Any] = {"workload": name, "group": group, "figure": figure}
        row |= {"measured_s": truth, "predicted_s": guess, "error": guess / truth - 1.0}
        row |= {"measured_runs_s": truths, "predicted_runs_s": guesses}
        rows.append(row)
    return rows


def show_replays(replays: dict[str, dict[str, Any]]) -> str:
    """One row a workload."""
    head = ["replay", "requests", "steps", "that differ", "TTFT off by", "E2E off by"]
    return table(
        head,
        [
            [
                name,
                f"{each['requests']}",
                f"{each['steps']}",
                f"{each['steps_that_differ']}",
                f"{100 * each['ttft_error_max']:.3f} %",
                f"{100 * each['e2e_error_max']:.3f} %",
            ]
            for name, each in replays.items()
        ],
    )


def show_predictions(rows: Sequence[dict[str, Any]]) -> str:
    """One row a figure, in milliseconds."""
    head = ["predicted", "measured", "predicted", "error"]
    return table(
        head,
        [
            [
                f"{row['workload']} {row['group']} {row['figure']}",
                f"{1000 * row['measured_s']:,.1f}",
                f"{1000 * row['predicted_s']:,.1f}",
                f"{100 * row['error']:+.1f} %",
            ]
            for row in rows
        ],
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--workloads", default=",".join(NAMES), help="w1 and w2 always run")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--recordings", type=Path, help="keep the runs in this folder, and use those that are there"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("server_options", nargs="*", help="options of headway serve, after --")
    return parser.parse_args()


def main() -> int:
    """Run, compare, print, write; 1 when a limit is passed."""
    options = parse_arguments()
    before = os.getloadavg()
    wanted = [n for n in NAMES if n in FITTED or n in options.workloads.split(",")]
    reals: dict[str, list[Real]] = {name: [] for name in wanted}
    for repetition in range(1, options.repetitions + 1):
        for name in wanted:
            capacity = reals["w2"][-1].client["requests_s"] if name == "w5" else None
            reals[name].append(real_of(name, repetition, options, capacity))
    replays = {f"{name} {real.repetition}": replay(real) for name in wanted for real in reals[name]}
    model = arithmetic_of(open_model(str(model_of(options))).card)
    cost, fit_error = costs_of([real for name in FITTED for real in reals[name]], model)
    think = think_of(reals["w2"])
    rows = []
    for name in wanted[1:]:
        predicted = [
            predict(real, cost, think, f"{options.seed}/{real.repetition}/{number}")
            for real in reals[name]
            for number in range(SIMULATIONS)
        ]
        rows += compare(name, [real.records for real in reals[name]], predicted)
    judged = [row for row in rows if row["workload"] not in FITTED]
    worst = max((abs(row["error"]) for row in judged), default=0.0)
    off = max(max(r["ttft_error_max"], r["e2e_error_max"]) for r in replays.values())
    print(f"\n{show_replays(replays)}\n\n{show_predictions(rows)}\n")
    print(f"replay: off by {100 * off:.3f} % at most (limit {REPLAY_LIMIT:.0%})")
    print(f"prediction, w3 to w5: off by {worst:.1%} at most (limit {PREDICTION_LIMIT:.0%})")
    if options.json:
        result = {
            "load_average": before,
            "commit": commit(),
            "machine": machine(),
            "command": plain([sys.executable, *sys.argv]),
            "repetitions": options.repetitions,
            "replays": replays,
            "replay_error_max": off,
            "prediction_error_max": worst,
            "predictions": rows,
            "costs": msgspec.to_builtins(cost),
            "fit_error": fit_error,
            "think_s": think,
            "clients": {name: [real.client for real in runs] for name, runs in reals.items()},
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if off <= REPLAY_LIMIT and worst <= PREDICTION_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
