"""`headway bench batching`: static, dynamic and continuous batching on one model and trace.

The engine always batches continuously; the older policies are made by what is let into it
(core.sim.gate). All three have the same number of slots and the same arrivals. It runs on the
CPU engine in this process, or with --simulate under the simulated clock.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from headway.app.bench_model import guarded, settings_of
from headway.app.bench_plot import Bars, Lines, draw
from headway.app.bench_show import (
    add_output,
    checked,
    milliseconds,
    percent,
    progress,
    save_json,
    table,
)
from headway.app.bench_steps import measure
from headway.app.cost_file import read_cost_file
from headway.app.local_engine import LocalEngine, local_engine, run_locally
from headway.app.simulate import lengths
from headway.core.base.errors import InvalidSetting
from headway.core.base.units import Seconds
from headway.core.sim.costs import SpreadCost
from headway.core.sim.gate import Batches, Continuous, Gate
from headway.core.sim.report import Record, Summary, summarize
from headway.core.sim.run import simulate
from headway.core.sim.workload import (
    Mix,
    Workload,
    closed_loop,
    open_loop,
    with_new_prompts,
)

DEFAULT_SLOTS = 16
QUICK_REQUESTS = 40


class Ran(NamedTuple):
    """One policy's run."""

    records: list[Record]
    slot_seconds: float


# Runs a workload through a gate; the callback is for the progress bar, once a request.
Runner = Callable[[Workload, Gate, Callable[[], object]], Ran]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    work = parser.add_argument_group("workload")
    work.add_argument("--num-requests", type=int, default=160)
    work.add_argument(
        "--rate", type=float, help="requests a second (default: what continuous batching can do)"
    )
    work.add_argument("--window", type=float, default=0.5, help="of dynamic batching, in seconds")
    work.add_argument("--prompt-len", default="32:512", help="tokens; LOW:HIGH is log-normal")
    work.add_argument("--output-len", default="8:256", help="tokens; LOW:HIGH is log-normal")
    where = parser.add_argument_group("where it runs")
    where.add_argument("--simulate", action="store_true", help="under the simulated clock")
    where.add_argument("--cost-table", type=Path, help="for --simulate: of `headway bench steps`")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run all three policies, print, write; the exit code."""
    return guarded("batching", lambda: checked(args, _run))


def policies(size: int, window: float) -> dict[str, Callable[[], Gate]]:
    """The three of them, made anew for each run."""
    return {
        "static": lambda: Batches(size),
        "dynamic": lambda: Batches(size, Seconds(window)),
        "continuous": Continuous,
    }


def mix_of(args: argparse.Namespace) -> Mix:
    """Lengths of the requests; raises InvalidSetting."""
    prompt, output = (
        lengths("--prompt-len", args.prompt_len),
        lengths("--output-len", args.output_len),
    )
    if args.quick:
        prompt = msgspec.structs.replace(prompt, high=max(prompt.low, prompt.high // 2))
        output = msgspec.structs.replace(output, high=max(output.low, output.high // 2))
    return Mix(prompt=prompt, output=output)


@contextmanager
def runner(args: argparse.Namespace) -> Iterator[tuple[Runner, int, str]]:
    """How a workload is run, the number of slots, and what it runs on."""
    settings = settings_of(args, {"max_num_seqs": DEFAULT_SLOTS})
    if args.simulate:
        costs = measure(args) if args.cost_table is None else read_cost_file(args.cost_table)
        engine = costs.engine(settings.engine)

        def simulated(workload: Workload, gate: Gate, on_end: Callable[[], object]) -> Ran:
            spread = SpreadCost(costs.table, Random(f"{args.seed}/spread"))
            result = simulate(workload, engine, spread, gate=gate)
            for _ in result.records:
                on_end()
            return Ran(result.records, result.steps.row_seconds)

        yield simulated, engine.max_num_seqs, f"{costs.card.name}, simulated"
        return
    with local_engine(settings) as local:
        yield (
            lambda workload, gate, on_end: really(local, workload, gate, on_end),
            local.core.settings.max_num_seqs,
            f"{local.card.name} ({local.hello.executor})",
        )


def really(
    engine: LocalEngine, workload: Workload, gate: Gate, on_end: Callable[[], object]
) -> Ran:
    """Compute it."""
    records, totals = run_locally(engine, workload, gate=gate, on_end=on_end)
    return Ran(records, totals.row_seconds)


def _run(args: argparse.Namespace) -> int:
    count = min(QUICK_REQUESTS, args.num_requests) if args.quick else args.num_requests
    if count < 1 or args.window <= 0 or (args.rate is not None and args.rate <= 0):
        raise InvalidSetting("--num-requests, --window, --rate", "must be above 0")
    mix = mix_of(args)
    with runner(args) as (run_one, slots, what):
        rate = args.rate or capacity(run_one, mix, slots, args)
        trace = open_loop(mix, rate, count / rate, Random(f"{args.seed}/batching"))
        runs: dict[str, Ran] = {}
        for name, gate in policies(slots, args.window).items():
            workload = with_new_prompts(trace, Random(f"{args.seed}/batching/{name}"))
            with progress(args, len(workload.arrivals), name) as bar:
                runs[name] = run_one(workload, gate(), partial(bar.update, 1))
    summaries = {
        name: summarize(ran.records, slot_seconds=ran.slot_seconds, num_slots=slots)
        for name, ran in runs.items()
    }
    print(f"{what}, {slots} slots, {rate:.2f} requests a second\n\n{show(summaries)}")
    draw(args.plot, panels(summaries, runs), f"batching: {what}")
    save_json(
        args.json,
        {
            "what": what,
            "slots": slots,
            "rate": rate,
            "window_s": args.window,
            "policies": {name: msgspec.to_builtins(s) for name, s in summaries.items()},
        },
    )
    return 0 if all(summary.total.lost == 0 for summary in summaries.values()) else 1


def capacity(run_one: Runner, mix: Mix, slots: int, args: argparse.Namespace) -> float:
    """Requests a second that continuous batching answers when there are always enough."""
    count = 2 * slots if args.quick else 4 * slots
    workload = closed_loop(mix, count, 2 * slots, Random(f"{args.seed}/capacity"))
    with progress(args, count, "capacity") as bar:
        ran = run_one(workload, Continuous(), partial(bar.update, 1))
    return summarize(ran.records).requests_s


def show(summaries: dict[str, Summary]) -> str:
    """One row a policy; throughput also as a multiple of static batching's."""
    head = ["", "TTFT P50", "P99", "ITL P50", "P99", "E2E P50", "P99"]
    head += ["tok/s", "of static", "slots used"]
    base = summaries["static"].output_tokens_s
    rows = []
    for name, summary in summaries.items():
        total = summary.total
        cells = [name]
        for each in (total.ttft, total.itl, total.e2e):
            cells += [milliseconds(each.p50), milliseconds(each.p99)]
        ratio = summary.output_tokens_s / base if base else 0.0
        cells += [f"{summary.output_tokens_s:,.1f}", f"{ratio:.2f} x"]
        rows.append([*cells, percent(summary.utilisation)])
    return table(head, rows) + "\n(milliseconds)"


def panels(summaries: dict[str, Summary], runs: dict[str, Ran]) -> list[Bars | Lines]:
    """Latencies, throughput, and how many requests are under way over time."""
    names = list(summaries)
    totals = [summary.total for summary in summaries.values()]
    shown: list[Bars | Lines] = []
    for title, latencies in (
        ("time to first token", [total.ttft for total in totals]),
        ("between tokens", [total.itl for total in totals]),
        ("whole answer", [total.e2e for total in totals]),
    ):
        both = {"P50": [x.p50 for x in latencies], "P99": [x.p99 for x in latencies]}
        shown.append(Bars(title, "s", names, both))
    rates = [summary.output_tokens_s for summary in summaries.values()]
    used = [summary.utilisation for summary in summaries.values()]
    shown.append(Bars("throughput", "tokens a second", names, {"output": rates}))
    shown.append(Bars("slots in use", "share", names, {"mean": used}))
    curves = {name: under_way(ran.records) for name, ran in runs.items()}
    shown.append(Lines("requests under way", "s", "requests", curves))
    return shown


def under_way(records: list[Record]) -> list[tuple[float, float]]:
    """Requests that were sent and had not ended, over time."""
    changes = [(record.arrived, 1) for record in records]
    changes += [(record.finished, -1) for record in records if record.finished is not None]
    points, count = [], 0
    for at, change in sorted(changes):
        count += change
        points.append((at, float(count)))
    return points
