"""What the benchmarks have in common: their output options, progress, tables and files."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from headway import __version__
from headway.app.bench_plot import check_plot
from headway.core.base.errors import InvalidSetting, StartError

EXIT_FAILED, EXIT_NOT_STARTED, EXIT_INTERRUPTED = 1, 2, 130


def add_output(parser: argparse._ActionsContainer, *, quick: str) -> None:
    """Declare --quick, --json, --plot and --seed; `quick` says what is made smaller."""
    parser.add_argument("--quick", action="store_true", help=f"at most a minute: {quick}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures here")
    parser.add_argument(
        "--plot", type=Path, metavar="PATH", help="draw them here; .svg or .png [headway[plot]]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def check_output(args: argparse.Namespace) -> None:
    """Refuse what would fail only after the run; raises StartError."""
    for option, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise InvalidSetting(option, f"there is no folder {path.absolute().parent}")
    if args.plot is not None:
        check_plot(args.plot)


def guarded(name: str, run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a benchmark; the exit code, with one line on stderr when it could not start."""
    try:
        check_output(args)
        return run(args)
    except StartError as error:
        print(f"headway {name}: {' '.join(error.message.split())}", file=sys.stderr)
        return EXIT_NOT_STARTED
    except KeyboardInterrupt:
        print(f"headway {name}: interrupted; nothing is reported", file=sys.stderr)
        return EXIT_INTERRUPTED


def progress(
    args: argparse.Namespace, total: float, label: str, unit: str = "req"
) -> "tqdm[NoReturn]":
    """A progress bar on stderr."""
    return tqdm(total=total, desc=label, unit=unit, disable=args.no_progress or None, leave=False)


def save_json(path: Path | None, figures: dict[str, object]) -> None:
    """Write figures beside what they depend on; raises StartError when that fails."""
    if path is None:
        return
    result = {
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "headway": __version__,
        "machine": machine(),
        **figures,
    }
    try:
        path.write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise StartError(f"--json: cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}")


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
