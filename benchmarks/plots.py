"""Line plots as SVG, drawn without a library: logarithmic axes, points that were measured, floors.

The text is the same for the same numbers, so that a test can compare it with a committed file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 90
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
TICK_STEPS = (1, 2, 5)
POINT_RADIUS = 3.5
LEGEND_COLUMNS = 2


class Series(NamedTuple):
    """One line: (x, y) points, both above 0. A floor is dashed and has no marks."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_floor: bool = False


class Axis(NamedTuple):
    """A logarithmic axis: what stands on it, and where a value lies."""

    label: str
    low: float
    high: float
    start: float  # pixels of `low` and `high`
    end: float

    def at(self, value: float) -> float:
        """Pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """The whole picture; ValueError when there is nothing to draw."""
    xs = sorted({x for each in series for x, _ in each.points})
    ys = [y for each in series for _, y in each.points]
    if not ys or min(ys) <= 0 or xs[0] <= 0:
        raise ValueError(f"{title}: logarithmic axes need points above 0")
    x_axis = Axis(x_label, xs[0] / 1.1, xs[-1] * 1.1, LEFT, WIDTH - RIGHT)
    y_axis = Axis(y_label, min(ys) / 1.3, max(ys) * 1.3, HEIGHT - BOTTOM, TOP)
    measured = sorted({x for each in series if not each.is_floor for x, _ in each.points})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 22, title, anchor="middle", size=15),
        *_grid(x_axis, measured or xs, y_axis),
        *(part for each in series for part in _line(each, x_axis, y_axis)),
        *_legend(series),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten inside the range; powers alone when that is too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [
        step * 10.0**power
        for power in range(first, last + 1)
        for step in TICK_STEPS
        if low <= step * 10.0**power <= high
    ]
    powers = [value for value in found if math.isclose(math.log10(value) % 1, 0, abs_tol=1e-9)]
    return found if len(found) <= 10 or len(powers) < 2 else powers


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    """One piece of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )


def number(value: float) -> str:
    """As on an axis: 1,024 or 0.5."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _grid(x_axis: Axis, xs: Sequence[float], y_axis: Axis) -> list[str]:
    parts = []
    for value in xs:
        x = x_axis.at(value)
        parts.append(_stroke(x, y_axis.start, x, y_axis.end, "#e5e5e5"))
        parts.append(text(x, y_axis.start + 16, number(value), anchor="middle"))
    for value in ticks(y_axis.low, y_axis.high):
        y = y_axis.at(value)
        parts.append(_stroke(x_axis.start, y, x_axis.end, y, "#e5e5e5"))
        parts.append(text(x_axis.start - 6, y + 4, number(value), anchor="end"))
    parts.append(_stroke(x_axis.start, y_axis.start, x_axis.end, y_axis.start, "#333333"))
    parts.append(_stroke(x_axis.start, y_axis.start, x_axis.start, y_axis.end, "#333333"))
    middle = (x_axis.start + x_axis.end) / 2
    parts.append(text(middle, y_axis.start + 34, x_axis.label, anchor="middle"))
    y_middle = (y_axis.start + y_axis.end) / 2
    parts.append(
        f'<g transform="translate(16 {y_middle:.1f}) rotate(-90)">'
        f"{text(0, 0, y_axis.label, anchor='middle')}</g>"
    )
    return parts


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> list[str]:
    colour = COLOURS[series.colour % len(COLOURS)]
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in sorted(series.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = ' stroke-dasharray="6 4" opacity="0.7"' if series.is_floor else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>']
    if not series.is_floor:
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{POINT_RADIUS}" fill="{colour}"/>'
            for x, y in places
        ]
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    width = (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS
    for position, each in enumerate(series):
        x = LEFT + position % LEGEND_COLUMNS * width
        y = HEIGHT - BOTTOM + 54 + position // LEGEND_COLUMNS * 16
        dash = "6 4" if each.is_floor else None
        parts.append(_stroke(x, y - 4, x + 28, y - 4, COLOURS[each.colour % len(COLOURS)], dash))
        parts.append(text(x + 34, y, each.label))
    return parts


def _stroke(
    x1: float, y1: float, x2: float, y2: float, colour: str, dash: str | None = None
) -> str:
    dashed = "" if dash is None else f' stroke-dasharray="{dash}"'
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="1.4"{dashed}/>'
    )
