"""Charts of the benchmarks; matplotlib is an extra (headway[plot])."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.core.base.errors import InvalidSetting, StartError

SUFFIXES = (".svg", ".png")
WIDTH, HEIGHT = 4.6, 3.4  # inches of one panel
PANELS_A_ROW = 3


class Bars(NamedTuple):
    """Groups of bars: one group a label, one bar a series; None leaves a gap."""

    title: str
    unit: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


class Lines(NamedTuple):
    """Curves over one axis."""

    title: str
    x_unit: str
    unit: str
    curves: Mapping[str, Sequence[tuple[float, float]]]


Panel = Bars | Lines


def check_plot(path: Path) -> None:
    """Refuse a name or a missing library before a run; raises StartError."""
    if path.suffix not in SUFFIXES:
        raise InvalidSetting("--plot", f"must end in {' or '.join(SUFFIXES)}, got {path.name}")
    if not path.absolute().parent.is_dir():
        raise InvalidSetting("--plot", f"there is no folder {path.absolute().parent}")
    _figure_class()


def draw(path: Path | None, panels: Sequence[Panel], title: str) -> None:
    """Write panels into one picture; raises StartError when that fails."""
    if path is None:
        return
    columns = min(PANELS_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure_class()(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    figure.suptitle(title)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        if isinstance(panel, Bars):
            _bars(axes, panel)
        else:
            _lines(axes, panel)
        axes.set_title(panel.title)
        axes.set_ylabel(panel.unit)
    try:
        figure.savefig(path)
    except OSError as error:
        raise StartError(f"--plot: cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StartError(
            "--plot needs matplotlib; install it with: pip install 'headway[plot]'"
        ) from error
    return Figure


def _bars(axes: Any, panel: Bars) -> None:
    width = 0.8 / max(1, len(panel.series))
    for index, (name, values) in enumerate(panel.series.items()):
        places = [at + width * (index - (len(panel.series) - 1) / 2) for at in range(len(values))]
        drawn = axes.bar(places, [value or 0.0 for value in values], width, label=name)
        axes.bar_label(drawn, fmt="{:,.3g}", fontsize=7)
    axes.set_xticks(range(len(panel.labels)), panel.labels)
    if len(panel.series) > 1:
        axes.legend(fontsize=8)


def _lines(axes: Any, panel: Lines) -> None:
    for name, points in panel.curves.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=name)
    axes.set_xlabel(panel.x_unit)
    if len(panel.curves) > 1:
        axes.legend(fontsize=8)
