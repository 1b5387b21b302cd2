#!/usr/bin/env python3
"""What this machine can do at most: read bandwidth, and arithmetic in registers.

    python benchmarks/roofline.py --threads 2

Builds membw.c and peak.c with the system's C compiler. Other scripts call `measure`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "membw": r"read x4 (?P<read_gb_s>[\d.]+) GB/s  triad (?P<triad_gb_s>[\d.]+)",
    "peak": r"kind (?P<kind>\S+)  int8 (?P<int8_gop_s>[\d.]+) GOP/s  f32 (?P<f32_gflop_s>[\d.]+)",
}


def measure(threads: int) -> dict[str, float | str]:
    """Both peaks; a program that cannot be built or run is left out, and "missing" says why."""
    found: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, pattern in PROGRAMS.items():
            try:
                output = _output_of(name, Path(folder), threads)
            except (OSError, subprocess.CalledProcessError) as error:
                found["missing"] = f"{name}: {getattr(error, 'stderr', None) or error}"[:300]
                continue
            found |= parse(output, pattern)
    return found


def parse(output: str, pattern: str) -> dict[str, float | str]:
    """Named figures of a program's line."""
    match = re.search(pattern, output)
    if match is None:
        raise ValueError(f"no figures in {output!r}")
    return {
        name: text if name == "kind" else float(text) for name, text in match.groupdict().items()
    }


def _output_of(name: str, folder: Path, threads: int) -> str:
    program = folder / name
    subprocess.run(
        ["cc", "-O3", "-march=native", "-fopenmp", str(HERE / f"{name}.c"), "-o", str(program)],
        check=True,
        capture_output=True,
        text=True,
    )
    run = subprocess.run(
        [str(program)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    return run.stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    print(json.dumps(measure(parser.parse_args().threads), indent=1))


if __name__ == "__main__":
    main()
