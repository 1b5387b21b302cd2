#!/usr/bin/env python3
"""Writes the tables and plots of docs/ from the files in results/.

    .venv/bin/python benchmarks/report.py            # writes
    .venv/bin/python benchmarks/report.py --check    # status 1 when something would change

No figure in a table is typed by hand: a test compares the pages with the files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gateway_page
import page
import pressure_page
from comparison import FIGURES
from plots import Series, chart

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "performance.md"
IMAGES = DOCS / "images"


def titles() -> dict[str, page.Title]:
    """How the comparison's figures are written."""
    return {
        figure.key: page.Title(
            figure.title,
            figure.unit,
            target(figure.must, figure.more_is_better),
            target(figure.aim, figure.more_is_better),
        )
        for figure in FIGURES
    }


def target(value: float | None, more_is_better: bool) -> str:
    """ "≥ 1.4"; empty for none."""
    return "" if value is None else f"{'≥' if more_is_better else '≤'} {value:g}"


def contents(results: Path, text: str) -> dict[Path, str]:
    """Every file that the report writes, and what belongs into it."""
    found = {PAGE: page.fill(text, page.made(results, titles()))}
    under_pressure = pressure_page.made(results)
    for name in pressure_page.PAGES:
        found[DOCS / name] = page.fill((DOCS / name).read_text(), under_pressure)
    gateway = DOCS / gateway_page.PAGE
    found[gateway] = page.fill(gateway.read_text(), gateway_page.made(results))
    growth = page.newest(results).get("growth")
    for name, each in page.charts_of(growth).items() if growth else ():
        series = [
            Series(label, points, number // 2, is_floor)
            for number, (label, points, is_floor) in enumerate(each["series"])
        ]
        found[IMAGES / name] = chart(each["title"], each["x"], each["y"], series)
    return found


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = {
        path: text
        for path, text in contents(HERE / "results", PAGE.read_text()).items()
        if not path.exists() or path.read_text() != text
    }
    for path, text in stale.items():
        print(("stale: " if options.check else "wrote ") + str(path))
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
