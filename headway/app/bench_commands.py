"""The benchmarks of `headway bench`, and `headway simulate`: one entry each."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headway.app import (
    bench,
    bench_batching,
    bench_latency,
    bench_memory,
    bench_overload,
    bench_startup,
    bench_steps,
    bench_throughput,
    simulate,
)
from headway.app.bench_model import model_options
from headway.app.option import Option
from headway.app.option_flags import add_option
from headway.app.options import OPTIONS


class Command(NamedTuple):
    """One command; `options` are those of `headway serve` that it takes too."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]  # gives the exit code
    options: Sequence[Option] = ()

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Give the parser all of the command's options."""
        self.add_arguments(parser)
        if self.options:
            group = parser.add_argument_group("as in headway serve")
            for option in self.options:
                add_option(group, option)


ENGINE = tuple(model_options())
COMMANDS: Mapping[str, Command] = {
    "serve": Command("load a running server", bench.add_arguments, bench.run),
    "latency": Command(
        "time one batch, without a server",
        bench_latency.add_arguments,
        bench_latency.run,
        ENGINE,
    ),
    "throughput": Command(
        "time many requests, without a server",
        bench_throughput.add_arguments,
        bench_throughput.run,
        ENGINE,
    ),
    "startup": Command(
        "time starts of headway serve",
        bench_startup.add_arguments,
        bench_startup.run,
        OPTIONS,
    ),
    "batching": Command(
        "static, dynamic and continuous batching side by side",
        bench_batching.add_arguments,
        bench_batching.run,
        ENGINE,
    ),
    "memory": Command(
        "contiguous reservation against paging, at equal memory",
        bench_memory.add_arguments,
        bench_memory.run,
    ),
    "overload": Command(
        "three classes, up to twice the capacity",
        bench_overload.add_arguments,
        bench_overload.run,
        ENGINE,
    ),
    "steps": Command(
        "what a step costs on this machine, for headway simulate",
        bench_steps.add_arguments,
        bench_steps.run,
        ENGINE,
    ),
}
SIMULATE = Command(
    "predict what clients of one replica would see", simulate.add_arguments, simulate.run, ENGINE
)
