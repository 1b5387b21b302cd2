"""What the benchmarks have in common: their output options, progress, tables and files."""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from headway import __version__
from headway.app.bench_model import add_common, write_json
from headway.app.bench_plot import check_plot

EXIT_FAILED = 1


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare --json, --quick, --plot and --seed."""
    add_common(parser)
    group = parser.add_argument_group("result, drawn")
    group.add_argument(
        "--plot", type=Path, metavar="PATH", help="draw the figures; .svg or .png [headway[plot]]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")


def checked(args: argparse.Namespace, work: Callable[[argparse.Namespace], int]) -> int:
    """Do the work, after refusing what would fail only at its end; raises StartError."""
    if args.plot is not None:
        check_plot(args.plot)
    return work(args)


def progress(
    args: argparse.Namespace, total: float, label: str, unit: str = "req"
) -> "tqdm[NoReturn]":
    """A progress bar on stderr."""
    return tqdm(total=total, desc=label, unit=unit, disable=args.disable_tqdm, leave=False)


def save_json(path: Path | None, figures: dict[str, object]) -> None:
    """Write figures beside what they depend on; raises StartError when that fails."""
    heading = {
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "headway": __version__,
        "command": " ".join(["headway", *sys.argv[1:]]),
        "machine": machine(),
    }
    write_json(path, heading | figures)


def machine() -> dict[str, object]:
    """What figures depend on besides the code."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
    }


def cpu_name() -> str:
    """The processor's name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        parts = [first.ljust(widths[0])]
        parts += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds for a table."""
    return "-" if seconds is None else f"{1000 * seconds:,.0f}"


def percent(share: float | None) -> str:
    """A share as a percentage for a table."""
    return "-" if share is None else f"{100 * share:.1f} %"
