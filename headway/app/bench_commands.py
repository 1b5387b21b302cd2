"""The benchmarks of `headway bench`: one line each."""

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headway.app import (
    bench,
    bench_batching,
    bench_memory,
    bench_overload,
    bench_steps,
)


class Command(NamedTuple):
    """One benchmark on the command line; `run` gives the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS: Mapping[str, Command] = {
    "serve": Command("send requests and report latencies", bench.add_arguments, bench.run),
    "batching": Command(
        "static, dynamic and continuous batching side by side",
        bench_batching.add_arguments,
        bench_batching.run,
    ),
    "memory": Command(
        "contiguous reservation against paging at equal memory",
        bench_memory.add_arguments,
        bench_memory.run,
    ),
    "overload": Command(
        "up to twice the capacity, from three classes",
        bench_overload.add_arguments,
        bench_overload.run,
    ),
    "steps": Command(
        "what a step costs on this machine, for headway simulate",
        bench_steps.add_arguments,
        bench_steps.run,
    ),
}
