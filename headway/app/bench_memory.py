"""`headway bench memory`: reserving whole contexts against paging, at equal memory.

Contiguous reservation is the same engine with blocks of a whole context each, of which a
request takes one and fills what it needs. Nothing is computed: the requests run through the
scheduler and the KV accounting of `headway serve` under the simulated clock.
"""

import argparse
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from headway.app.bench_model import guarded
from headway.app.bench_plot import Bars, draw
from headway.app.bench_show import add_output, checked, percent, progress, save_json, table
from headway.app.cost_file import read_cost_file
from headway.core.base.errors import InvalidSetting
from headway.core.engine.settings import ResolvedEngine
from headway.core.sim.costs import StepTable
from headway.core.sim.memory import Held, MemoryMeter, MemoryUse, hold
from headway.core.sim.report import Summary
from headway.core.sim.run import simulate
from headway.core.sim.workload import Planned, Workload, ids

CONTEXT = 2048  # positions that contiguous reservation gives each request
SLOTS = 1024  # more than fit into any pool here: memory alone is the limit
STEP_TOKENS = 2048  # likewise: prompts are computed faster than the pool is emptied
# Ratios hardly depend on it: 20 ms a step and 0.2 ms a token of a prompt.
TYPICAL = StepTable(
    rows=((1, 0.020), (64, 0.060)), decode_pair_s=1e-7, prefill_token_s=2e-4, prefill_pair_s=1e-8
)


class Case(NamedTuple):
    """One way of giving out the same memory."""

    name: str
    block_size: int
    enable_prefix_caching: bool


CASES = (Case("contiguous", CONTEXT, False), Case("paged", 16, True))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one case came to."""

    use: MemoryUse
    most_running: int
    summary: Summary
    burst: Held
    preemptions: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    work = parser.add_argument_group("workload")
    work.add_argument("--positions", type=int, default=32_768, help="KV positions there are")
    work.add_argument("--num-requests", type=int, default=1200, help="that wait from the start")
    work.add_argument("--short", default="50+50", help="prompt + answer of short ones, in tokens")
    work.add_argument("--long", default="1950+50", help="the same of long ones")
    work.add_argument("--short-share", type=float, default=0.7, help="short ones of all")
    work.add_argument("--cost-table", type=Path, help="a file of `headway bench steps --json`")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run both cases, print, write; the exit code."""
    return guarded("memory", lambda: checked(args, _run))


def requests(args: argparse.Namespace) -> list[Planned]:
    """The mix in a random order; raises InvalidSetting."""
    kinds = [split("--short", args.short), split("--long", args.long)]
    if not 0.0 <= args.short_share <= 1.0:
        raise InvalidSetting("--short-share", f"must be from 0 to 1, got {args.short_share}")
    count = min(300, args.num_requests) if args.quick else args.num_requests
    num_short = round(count * args.short_share)
    rng = Random(f"{args.seed}/memory")
    lengths = [kinds[0]] * num_short + [kinds[1]] * (count - num_short)
    rng.shuffle(lengths)
    return [
        Planned(
            id=f"r{number}",
            prompt=ids(prompt, rng),
            output_tokens=output,
            max_tokens=output,
            group="short" if (prompt, output) == kinds[0] else "long",
        )
        for number, (prompt, output) in enumerate(lengths)
    ]


def split(option: str, text: str) -> tuple[int, int]:
    """`1950+50` as a prompt's and an answer's length; raises InvalidSetting."""
    prompt, _, output = text.partition("+")
    try:
        found = int(prompt), int(output)
    except ValueError:
        raise InvalidSetting(option, f"takes PROMPT+ANSWER in tokens, got {text!r}") from None
    if min(found) < 1 or sum(found) > CONTEXT:
        raise InvalidSetting(option, f"needs 1 or more each, {CONTEXT} together; got {text!r}")
    return found


def measure(case: Case, mix: list[Planned], positions: int, cost: StepTable) -> Found:
    """Let all requests wait from the start, and watch the pool while any does."""
    num_blocks = positions // case.block_size
    settings = ResolvedEngine(
        max_model_len=CONTEXT,
        max_num_seqs=min(SLOTS, num_blocks),
        max_num_batched_tokens=STEP_TOKENS,
        block_size=case.block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=case.enable_prefix_caching,
        max_waiting_requests=len(mix),
        max_waiting_tokens=CONTEXT * len(mix),
    )
    meter = MemoryMeter()
    workload = Workload(queue=tuple(mix), num_clients=len(mix))
    result = simulate(workload, settings, cost, probe=meter.probe)
    lengths = [len(planned.prompt) + planned.output_tokens for planned in mix]
    return Found(
        use=meter.use(),
        most_running=meter.most_running,
        summary=result.summary(),
        burst=hold(lengths, num_blocks, case.block_size),
        preemptions=result.status.preemptions,
    )


def _run(args: argparse.Namespace) -> int:
    if args.positions < CONTEXT:
        raise InvalidSetting("--positions", f"must be at least {CONTEXT}, got {args.positions}")
    mix = requests(args)
    cost = TYPICAL if args.cost_table is None else read_cost_file(args.cost_table).table
    found: dict[str, Found] = {}
    with progress(args, len(CASES), "memory", "case") as bar:
        for case in CASES:
            found[case.name] = measure(case, mix, args.positions, cost)
            bar.update()
    ratio = ratio_of(found)
    print(show(found, args))
    draw(args.plot, panels(found), f"{args.positions:,} KV positions, two ways")
    save_json(
        args.json,
        {
            "positions": args.positions,
            "requests": len(mix),
            "short": args.short,
            "long": args.long,
            "short_share": args.short_share,
            "concurrency_ratio": ratio,
            "cases": {name: msgspec.to_builtins(each) for name, each in found.items()},
        },
    )
    return 0


def ratio_of(found: dict[str, Found]) -> float:
    """Sequences running under paging over those under reservation, while requests wait."""
    reserved = found["contiguous"].use.running
    return found["paged"].use.running / reserved if reserved else 0.0


def show(found: dict[str, Found], args: argparse.Namespace) -> str:
    """The table, and the out-of-memory case in words."""
    head = [
        "",
        "utilisation",
        "live only",
        "waste",
        "running",
        "most",
        "preempted",
        "req/s",
        "lost",
    ]
    rows = [
        [
            name,
            percent(each.use.utilisation),
            percent(each.use.live),
            percent(each.use.waste),
            f"{each.use.running:.1f}",
            f"{each.most_running}",
            f"{each.preemptions}",
            f"{each.summary.requests_s:.2f}",
            f"{each.summary.total.lost}",
        ]
        for name, each in found.items()
    ]
    reserved, paged = found["contiguous"].burst, found["paged"].burst
    return (
        f"{args.short_share:.0%} requests of {args.short} tokens, the rest of {args.long}, "
        f"in {args.positions:,} positions\n\n{table(head, rows)}\n\n"
        f"concurrency_ratio {ratio_of(found):.2f}\n"
        f"out of memory: in a burst, reservation has no room for request "
        f"{reserved.requests + 1}, while {percent(reserved.used)} of the positions hold tokens; "
        f"paging holds {paged.requests} requests in {percent(paged.used)} of them"
    )


def panels(found: dict[str, Found]) -> list[Bars]:
    """Use of the positions, and how many sequences run."""
    names = list(found)
    uses = [each.use for each in found.values()]
    return [
        Bars(
            "positions, while requests wait",
            "share",
            names,
            {
                "live or cached": [use.utilisation for use in uses],
                "live": [use.live for use in uses],
                "waste": [use.waste for use in uses],
            },
        ),
        Bars("sequences running", "sequences", names, {"mean": [use.running for use in uses]}),
        Bars(
            "held before out of memory",
            "requests",
            names,
            {"burst": [float(each.burst.requests) for each in found.values()]},
        ),
    ]
