"""`headway bench steps`: what a step costs on this machine, for `headway simulate`.

The real engine runs groups of requests over a grid of batch sizes, contexts and prompt
lengths; each of its steps is timed, and a table is fitted to them.
"""

import argparse
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from headway.app.bench_model import guarded, settings_of
from headway.app.bench_show import (
    add_output,
    checked,
    machine,
    percent,
    progress,
    save_json,
    table,
)
from headway.app.cost_file import CostFile, make_cost_file
from headway.app.local_engine import LocalEngine, local_engine, run_locally
from headway.app.wall_loop import WallLoop, WallRuns
from headway.core.base.units import Seconds
from headway.core.cost.work import StepWork
from headway.core.sim.costs import MeasuredStep, StepTable, measured, work_of
from headway.core.sim.workload import Mix, Workload, draw, fixed
from headway.service.control.memory import available_bytes


class Cell(NamedTuple):
    """One group of requests that start together; lengths in tokens."""

    num_requests: int
    prompt: int
    output: int


# Few requests with long contexts, and many with short ones: a minute's work on two cores.
GRID = (
    *(Cell(1, 64, 24), Cell(1, 1024, 16), Cell(1, 4000, 12)),
    *(Cell(2, 64, 16), Cell(2, 700, 12), Cell(4, 64, 16), Cell(4, 512, 12)),
    *(Cell(8, 48, 16), Cell(8, 400, 12), Cell(12, 64, 12), Cell(16, 32, 16)),
    *(Cell(16, 256, 12), Cell(24, 32, 12), Cell(32, 32, 12), Cell(32, 128, 8)),
)
QUICK = (
    *(Cell(1, 64, 12), Cell(1, 1024, 8), Cell(2, 64, 8), Cell(4, 64, 8), Cell(4, 256, 8)),
    *(Cell(8, 48, 8), Cell(16, 32, 8), Cell(16, 128, 8), Cell(32, 16, 10)),
)
MOST_SHOWN = 64  # rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; the exit code."""
    return guarded("steps", lambda: checked(args, _run))


def measure(args: argparse.Namespace) -> CostFile:
    """Load the engine that the arguments describe and measure it; raises StartError."""
    # Prompts whole, so that the grid's cells are the steps, however slow the machine is.
    with local_engine(settings_of(args, {"itl_target": 0.0})) as engine:
        free_bytes = available_bytes()  # after the weights, as the server asks
        steps = measure_steps(engine, QUICK if args.quick else GRID, args)
        pool = engine.hello.num_blocks * engine.core.settings.block_size
        return make_cost_file(
            steps,
            engine.card,
            bytes_per_kv_value=engine.bytes_per_kv_value,
            free_bytes=free_bytes or pool * engine.card.kv_bytes_per_token(2),
            machine=machine(),
        )


def measure_steps(
    engine: LocalEngine, grid: Sequence[Cell], args: argparse.Namespace
) -> list[MeasuredStep]:
    """Run the grid's cells that fit this engine; every step's work and time, plan to commit."""
    settings = engine.core.settings
    capacity = settings.num_blocks * settings.block_size
    cells = [
        cell
        for cell in grid
        if cell.num_requests <= settings.max_num_seqs
        and cell.prompt + cell.output <= settings.max_model_len
        and cell.num_requests * (cell.prompt + cell.output + settings.block_size) <= capacity
    ]
    steps: list[MeasuredStep] = []

    def seen(loop: WallLoop, runs: WallRuns, took: Seconds) -> None:
        assert runs.last is not None, "a step ended that never ran"
        # With what follows the result: text, events and their records.
        steps.append(measured(work_of(runs.last), took + loop.now() - runs.collected))

    rng = Random(f"{args.seed}/steps")
    with progress(args, len(cells), "measuring steps", "cell") as bar:
        for number, cell in enumerate(cells):
            requests = draw(
                Mix(prompt=fixed(cell.prompt), output=fixed(cell.output)),
                cell.num_requests,
                rng,
                label=f"cell{number}-",
            )
            workload = Workload(queue=tuple(requests), num_clients=len(requests))
            run_locally(engine, workload, on_step=seen)
            bar.update()
    return steps


def show(costs: CostFile) -> str:
    """The table as people read it."""
    cells = [(f"decode, {count} rows", StepWork(count)) for count in shown_rows(costs.table)]
    cells += [
        (f"the same, each at position {at}", StepWork(count, count * at))
        for count, at in ((1, 4000), (16, 1000))
    ]
    cells += [("prompt, 256 tokens at 0", prompt(0)), ("prompt, 256 tokens at 3,840", prompt(3840))]
    rows = [[name, f"{1000 * costs.table.seconds(work):.2f}"] for name, work in cells]
    return (
        table(["step", "ms"], rows)
        + f"\n{costs.num_steps} steps of {costs.card.name}; the fit is off by "
        f"{percent(costs.error_p50)} (median), {percent(costs.error_p90)} (P90)"
    )


def shown_rows(costs: StepTable) -> list[int]:
    """Numbers of rows that the table has values for; those of many are for prompts."""
    return [rows for rows, _ in costs.rows if rows <= MOST_SHOWN]


def prompt(start: int) -> StepWork:
    """A chunk of a prompt."""
    work = StepWork()
    work.add(start, 256)
    return work


def _run(args: argparse.Namespace) -> int:
    costs = measure(args)
    print(show(costs))
    save_json(args.json, msgspec.to_builtins(costs))
    return 0
