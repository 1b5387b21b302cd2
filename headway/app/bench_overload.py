"""`headway bench overload`: three classes, up to twice what the server can do.

First the capacity is measured in a closed loop, then how soon VIPs are answered when they are
alone, then all classes arrive in an open loop (Poisson) at shares of that capacity. It loads a
running server (--base-url), or one that it starts, or with --simulate no server at all.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec

from headway.app.bench_model import guarded, settings_of
from headway.app.bench_overload_report import checks, panels, show
from headway.app.bench_overload_sites import (
    HttpSite,
    Phase,
    SimSite,
    Site,
    by_kind,
    start_options,
)
from headway.app.bench_plot import draw
from headway.app.bench_show import EXIT_FAILED, add_output, checked, save_json
from headway.app.bench_steps import measure
from headway.app.cost_file import read_cost_file
from headway.app.served import FREE_PORT, KEEPS_NOTHING, SERVE, Served, running_server
from headway.app.simulate import lengths
from headway.core.base.errors import InvalidSetting
from headway.core.sim.costs import SpreadCost
from headway.core.sim.workload import (
    Mix,
    Party,
    Workload,
    closed_loop,
    open_loop,
    with_new_prompts,
)
from headway.core.tenancy.tenant import DEFAULT_TARGETS, NAMES

VIP, STANDARD, INTERNAL = "vip", "standard", "internal"
SHARES = {VIP: 0.2, STANDARD: 0.5, INTERNAL: 0.3}
# Seconds to the first token; internal is best effort.
TARGETS = {each.name.lower(): float(time) for each, time in DEFAULT_TARGETS.items()}
LOADS = (0.5, 1.0, 2.0)  # of the capacity
MINUTES, QUICK_SECONDS, QUICK_CLIENTS = 10.0, 6.0, 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    where = parser.add_argument_group("where it runs")
    where.add_argument("--base-url", help="a running server, e.g. http://127.0.0.1:8000")
    where.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="CLASS=KEY",
        help="bearer token of a tenant of that class, on a running server",
    )
    where.add_argument("--simulate", action="store_true", help="under the simulated clock")
    where.add_argument("--cost-table", type=Path, help="for --simulate: of `headway bench steps`")
    work = parser.add_argument_group("workload")
    work.add_argument("--minutes", type=float, default=MINUTES, help="at each load")
    work.add_argument("--capacity", type=float, help="requests a second (default: measured)")
    work.add_argument("--clients", type=int, default=48, help="of the closed loop that measures it")
    work.add_argument("--prompt-len", default="64:1500", help="tokens; LOW:HIGH is log-normal")
    work.add_argument("--output-len", default="16:256", help="tokens; LOW:HIGH is log-normal")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run all loads, print, write; 1 when a request was lost."""
    return guarded("overload", lambda: checked(args, _run))


def mix_of(args: argparse.Namespace) -> Mix:
    """The three classes and their lengths; raises InvalidSetting."""
    return Mix(
        prompt=lengths("--prompt-len", args.prompt_len),
        output=lengths("--output-len", args.output_len),
        parties=tuple(
            Party(
                group=name,
                share=share,
                tenants=(name,),
                slo_class=NAMES[name],
                first_token_budget_s=TARGETS.get(name),
            )
            for name, share in SHARES.items()
        ),
    )


def only(workload: Workload, group: str) -> Workload:
    """The same arrivals of one class alone."""
    return workload._replace(
        arrivals=tuple(each for each in workload.arrivals if each[1].group == group)
    )


def capacity_load(mix: Mix, num_clients: int, rng: Random, *, rounds: int) -> Workload:
    """Best-effort requests, so that nobody is refused for coming late in the first rush."""
    party = Party(group=INTERNAL, share=1.0, slo_class=NAMES[INTERNAL])
    best_effort = msgspec.structs.replace(mix, parties=(party,))
    return closed_loop(best_effort, rounds * num_clients, num_clients, rng)


def phases_of(site: Site, args: argparse.Namespace) -> tuple[float, list[Phase]]:
    """Measure the capacity unless it is given, then each load; VIPs alone come first."""
    mix = mix_of(args)
    seconds = QUICK_SECONDS if args.quick else 60.0 * args.minutes
    capacity = args.capacity
    if capacity is None:
        rng = Random(f"{args.seed}/capacity")
        # A tail of unfilled slots counts as time too: with more rounds it matters less.
        num_clients = min(args.clients, QUICK_CLIENTS) if args.quick else args.clients
        load = capacity_load(mix, num_clients, rng, rounds=1 if args.quick else 4)
        capacity = site.run("capacity", 0.0, load).summary(TARGETS).requests_s
        if capacity <= 0:
            raise InvalidSetting("--capacity", "could not be measured: nothing was answered")
    loads = {
        load: open_loop(mix, load * capacity, seconds, Random(f"{args.seed}/load/{load}"))
        for load in LOADS
    }
    alone = with_new_prompts(only(loads[LOADS[-1]], VIP), Random(f"{args.seed}/alone"))
    phases = [site.run("vip alone", LOADS[-1], alone)]
    phases += [site.run(f"{load:g} x", load, workload) for load, workload in loads.items()]
    return capacity, phases


@contextmanager
def site_of(args: argparse.Namespace) -> Iterator[Site]:
    """Where the requests go; raises StartError."""
    if args.simulate:
        costs = measure(args) if args.cost_table is None else read_cost_file(args.cost_table)
        engine = costs.engine(settings_of(args).engine)
        spread = SpreadCost(costs.table, Random(f"{args.seed}/spread"))
        yield SimSite(engine, spread, costs.card.name, args)
    elif args.base_url is not None:
        yield HttpSite(Served(args.base_url.rstrip("/")), keys_of(args.key), args)
    else:
        options, keys = start_options(args, tuple(SHARES))
        with running_server((*SERVE, *FREE_PORT, *KEEPS_NOTHING, *options)) as served:
            yield HttpSite(served, keys, args)


def keys_of(items: list[str]) -> dict[str, str]:
    """`vip=KEY` as a key by class; raises InvalidSetting."""
    keys: dict[str, str] = {}
    for item in items:
        name, _, key = item.partition("=")
        if name not in SHARES or not key:
            raise InvalidSetting("--key", f"takes CLASS=KEY of {', '.join(SHARES)}; got {item!r}")
        keys[name] = key
    return keys


def _run(args: argparse.Namespace) -> int:
    for name in ("minutes", "clients", "capacity"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise InvalidSetting(f"--{name}", f"must be above 0, got {value}")
    with site_of(args) as site:
        capacity, phases = phases_of(site, args)
        what = site.what
    print(show(phases, capacity, what, TARGETS))
    found = checks(phases, TARGETS)
    print(found.text())
    draw(args.plot, panels(phases, TARGETS), f"overload: {what}, {capacity:.2f} requests a second")
    save_json(
        args.json,
        {
            "what": what,
            "capacity_requests_s": capacity,
            "targets_s": TARGETS,
            "checks": msgspec.to_builtins(found),
            "phases": {
                phase.name: msgspec.to_builtins(phase.summary(TARGETS))
                | {
                    "preempted": by_kind(phase.counters),
                    "counters": phase.counters,
                    "resident_bytes": phase.resident,
                }
                for phase in phases
            },
        },
    )
    return EXIT_FAILED if found.lost else 0
