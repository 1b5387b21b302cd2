"""Usage as JSON and as CSV: the same from the server and from the command line."""

import csv
import io
from collections.abc import Sequence

from headway.core.messages.usage import SUMS, UsageRow
from headway.service.openai.usage_schema import UsageList

NUMBERS = ("requests", "ok", *SUMS)
NAMES = {"cost": "cost_micros"}  # whole millionths of the currency of the prices
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute


def usage_list(group_by: Sequence[str], rows: Sequence[UsageRow]) -> UsageList:
    """Rows by name, and the sum of all."""
    return UsageList(
        group_by=tuple(group_by),
        data=[{**dict(zip(group_by, row.group, strict=True)), **_numbers(row)} for row in rows],
        total=total_of(rows),
    )


def total_of(rows: Sequence[UsageRow]) -> dict[str, int | float]:
    """The sums over all rows."""
    return {NAMES.get(name, name): sum(getattr(row, name) for row in rows) for name in NUMBERS}


def usage_csv(group_by: Sequence[str], rows: Sequence[UsageRow]) -> str:
    """One line of names, then a line a row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*group_by, *(NAMES.get(name, name) for name in NUMBERS)])
    for row in rows:
        numbers = [f"{n:.6f}" if isinstance(n, float) else n for n in _numbers(row).values()]
        writer.writerow([*(_plain(name) for name in row.group), *numbers])
    return out.getvalue()


def usage_table(group_by: Sequence[str], rows: Sequence[UsageRow]) -> str:
    """For people: columns of equal width, and the sum of all below."""
    numbers = [NAMES.get(name, name) for name in NUMBERS]
    lines = [[*group_by, *numbers]]
    lines += [[*row.group, *map(_short, _numbers(row).values())] for row in rows]
    lines.append([*("total" if i == 0 else "" for i in range(len(group_by)))])
    lines[-1] += [_short(number) for number in total_of(rows).values()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    num_groups = len(group_by)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < num_groups else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _numbers(row: UsageRow) -> dict[str, int | float]:
    return {NAMES.get(name, name): getattr(row, name) for name in NUMBERS}


def _short(number: float) -> str:
    return f"{number:.3f}" if isinstance(number, float) else str(number)


def _plain(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
