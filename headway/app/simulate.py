"""`headway simulate`: what clients of one replica would see, without computing anything.

The scheduler and the KV accounting are those of `headway serve`; the time of each step comes
from a table that `headway bench steps` measured on this machine (--cost-table; without it,
the steps are measured first).
"""

import argparse
import sys
from pathlib import Path
from random import Random

import msgspec

from headway.app.bench_model import guarded, settings_of
from headway.app.bench_plot import Bars, Lines, draw
from headway.app.bench_show import (
    add_output,
    checked,
    milliseconds,
    percent,
    save_json,
    table,
)
from headway.app.bench_steps import measure
from headway.app.cost_file import CostFile, read_cost_file
from headway.app.trace_file import read_trace
from headway.core.base.errors import InvalidSetting
from headway.core.sim.costs import SpreadCost
from headway.core.sim.report import Figures, Record, Summary
from headway.core.sim.run import Simulated, simulate
from headway.core.sim.workload import (
    Lengths,
    Mix,
    Workload,
    benchmark,
    closed_loop,
    open_loop,
)

WORKLOADS = ("w1", "w2", "w3", "w4", "w5")
OVERLOAD_S, QUICK_OVERLOAD_S = 60.0, 20.0
CURVE_POINTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    costs = parser.add_argument_group("costs")
    costs.add_argument("--cost-table", type=Path, help="a file of `headway bench steps --json`")
    costs.add_argument(
        "--client-ms", type=float, help="time of a request outside of the engine (default: 0)"
    )
    work = parser.add_argument_group("workload (default: w2 to w5)")
    work.add_argument(
        "--workloads", help=f"of {', '.join(WORKLOADS)}; separated by commas", metavar="NAMES"
    )
    work.add_argument("--requests", type=Path, help="a trace: a JSON object a line")
    work.add_argument("--rate", type=float, help="a synthetic one: requests a second")
    work.add_argument("--concurrency", type=int, help="a synthetic one: clients in a closed loop")
    work.add_argument("--num-requests", type=int, default=200, help="of a synthetic workload")
    work.add_argument("--prompt-len", default="64:1500", help="tokens; LOW:HIGH is log-normal")
    work.add_argument("--output-len", default="16:256", help="tokens; LOW:HIGH is log-normal")
    work.add_argument("--prefix-len", type=int, default=0, help="tokens that all prompts share")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, print, write; the exit code."""
    return guarded("simulate", lambda: checked(args, _run), command="headway")


def workloads(args: argparse.Namespace, capacity: float | None) -> dict[str, Workload]:
    """Those that the arguments ask for, by name; raises InvalidSetting."""
    if args.requests is not None:
        return {args.requests.stem: read_trace(args.requests, args.seed)}
    if args.rate is not None or args.concurrency is not None:
        return {"synthetic": synthetic(args)}
    seconds = QUICK_OVERLOAD_S if args.quick else OVERLOAD_S
    think = (args.client_ms or 0.0) / 1000
    return {
        name: benchmark(
            name,
            Random(f"{args.seed}/{name}"),
            capacity=capacity,
            seconds=seconds,
            think=think,
        )
        for name in names(args)
        if name != "w5" or capacity is not None
    }


def names(args: argparse.Namespace) -> list[str]:
    """Names of the benchmark's workloads that are asked for."""
    chosen = (args.workloads or "w2,w3,w4,w5").split(",")
    if unknown := [name for name in chosen if name not in WORKLOADS]:
        raise InvalidSetting("--workloads", f"has {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    return chosen


def synthetic(args: argparse.Namespace) -> Workload:
    """An open or a closed loop of random lengths."""
    mix = Mix(
        prompt=lengths("--prompt-len", args.prompt_len),
        output=lengths("--output-len", args.output_len),
        shared_prefix=args.prefix_len,
    )
    rng = Random(f"{args.seed}/synthetic")
    if args.num_requests < 1:
        raise InvalidSetting("--num-requests", f"must be at least 1, got {args.num_requests}")
    if args.concurrency is not None:
        if args.concurrency < 1:
            raise InvalidSetting("--concurrency", f"must be at least 1, got {args.concurrency}")
        return closed_loop(mix, args.num_requests, args.concurrency, rng)
    if args.rate <= 0:
        raise InvalidSetting("--rate", f"must be above 0, got {args.rate:g}")
    return open_loop(mix, args.rate, args.num_requests / args.rate, rng)


def lengths(option: str, text: str) -> Lengths:
    """`256`, or `64:1500` for log-normal lengths between bounds; raises InvalidSetting."""
    low, _, high = text.partition(":")
    try:
        found = Lengths(low=int(low), high=int(high or low))
    except ValueError:
        raise InvalidSetting(option, f"takes TOKENS or LOW:HIGH, got {text!r}") from None
    if not 1 <= found.low <= found.high:
        raise InvalidSetting(option, f"needs 1 <= LOW <= HIGH, got {text!r}")
    return found


def _run(args: argparse.Namespace) -> int:
    settings = settings_of(args).engine
    names(args)
    costs = _costs(args)
    engine = costs.engine(settings)
    rng = Random(f"{args.seed}/spread")
    capacity = None
    if args.requests is None and args.rate is None and args.concurrency is None:
        w2 = workloads(argparse.Namespace(**{**vars(args), "workloads": "w2"}), None)["w2"]
        capacity = simulate(w2, engine, SpreadCost(costs.table, rng)).summary().requests_s
    found: dict[str, Simulated] = {
        name: simulate(workload, engine, SpreadCost(costs.table, rng))
        for name, workload in workloads(args, capacity).items()
    }
    summaries = {name: result.summary() for name, result in found.items()}
    print(show(summaries))
    for name, result in found.items():
        print(_totals(name, result))
    draw(args.plot, panels(summaries, found), f"predicted for {costs.card.name}")
    save_json(
        args.json,
        {
            "model": costs.card.name,
            "engine": msgspec.to_builtins(engine),
            "costs": msgspec.to_builtins(costs.table),
            "capacity_requests_s": capacity,
            "workloads": {name: msgspec.to_builtins(s) for name, s in summaries.items()},
        },
    )
    return 0


def _costs(args: argparse.Namespace) -> CostFile:
    if args.cost_table is not None:
        return read_cost_file(args.cost_table)
    print(
        "no --cost-table: measuring the steps of this machine first; "
        "`headway bench steps --json FILE` keeps them",
        file=sys.stderr,
    )
    return measure(args)


def show(summaries: dict[str, Summary]) -> str:
    """The figures of each workload and of its groups, in milliseconds."""
    head = ["", "sent", "refused", "TTFT P50", "P99", "ITL P50", "P99", "E2E P50", "P99"]
    head += ["tok/s", "slots used"]
    rows = []
    for name, summary in summaries.items():
        rate = f"{summary.output_tokens_s:,.1f}"
        rows.append([name, *_cells(summary.total), rate, percent(summary.utilisation)])
        if len(summary.groups) > 1:
            rows += [
                [f"  {group}", *_cells(figures), "", ""]
                for group, figures in summary.groups.items()
            ]
    return table(head, rows) + "\n(milliseconds; predicted, nothing was computed)"


def _cells(figures: Figures) -> list[str]:
    latencies = (figures.ttft, figures.itl, figures.e2e)
    cells = [f"{figures.sent}", f"{figures.refused}"]
    for each in latencies:
        cells += [milliseconds(each.p50), milliseconds(each.p99)]
    return cells


def _totals(name: str, result: Simulated) -> str:
    steps, status = result.steps, result.status
    return (
        f"{name}: {steps.num_steps} steps, {steps.busy_s:.1f} s busy, "
        f"{steps.sequence_steps / max(1, steps.num_steps):.1f} rows a step, "
        f"{status.preemptions} preemptions, {status.prefix_hits} prompt tokens from the cache"
    )


def panels(summaries: dict[str, Summary], found: dict[str, Simulated]) -> list[Bars | Lines]:
    """TTFT and E2E of each workload, and how they are spread."""
    labels = list(summaries)
    totals = [summary.total for summary in summaries.values()]
    shown: list[Bars | Lines] = []
    for title, latencies in (
        ("time to first token", [total.ttft for total in totals]),
        ("whole answer", [total.e2e for total in totals]),
    ):
        shown.append(
            Bars(
                title,
                "s",
                labels,
                {"P50": [x.p50 for x in latencies], "P99": [x.p99 for x in latencies]},
            )
        )
    curves = {name: spread(result.records) for name, result in found.items()}
    shown.append(Lines("share of answers begun within", "s", "share", curves))
    return shown


def spread(records: list[Record]) -> list[tuple[float, float]]:
    """Share of the requests whose first token had come, over seconds since they were sent."""
    ordered = sorted(record.ttft for record in records if record.token_times)
    step = max(1, len(ordered) // CURVE_POINTS)
    return [(ordered[i], (i + 1) / len(records)) for i in range(0, len(ordered), step)]
