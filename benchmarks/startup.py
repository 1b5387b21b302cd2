#!/usr/bin/env python3
"""Times a first start: compiling the kernels, loading them again, and importing the parts.

    .venv/bin/python benchmarks/startup.py --name startup

writes benchmarks/results/NAME.json. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from run_workloads import HERE, cache_folder, commit, machine, plain, versions

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.progress import ConsoleProgress

MODULES = ("headway.app.cli", "headway.app.cpu_replica", "headway.app.torch_replica")
RUNS = 5


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    options = parser.parse_args()
    model = fetch_builtin(ConsoleProgress(), cache_folder())
    program = str(Path(sys.executable).with_name("headway"))
    figures: dict[str, float] = {"nothing": median_of([sys.executable, "-c", "pass"])}
    with tempfile.TemporaryDirectory() as folder:
        warmup = [program, "warmup", "--model", model, "--cache-dir", folder]
        figures["warmup_empty_cache"] = seconds(warmup)
        figures["warmup_again"] = median_of(warmup)
    for module in MODULES:
        figures[f"import {module}"] = median_of([sys.executable, "-c", f"import {module}"])
    target = HERE / "results" / f"{options.name}.json"
    result = {
        "name": options.name,
        "date": datetime.now(UTC).isoformat("T", "seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": plain([sys.executable, *sys.argv]),
        "runs": RUNS,
        "seconds": figures,
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    for name, took in figures.items():
        print(f"{name:<36} {took:6.2f} s")
    return 0


def median_of(command: list[str]) -> float:
    """Median seconds of RUNS runs, the start of the interpreter included."""
    return statistics.median(seconds(command) for _ in range(RUNS))


def seconds(command: list[str]) -> float:
    """Wall seconds of one run that must succeed."""
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
