"""Charts: what is refused before a run, and what is drawn where the library is there."""

import sys
from pathlib import Path

import pytest

from headway.app.bench_plot import Bars, Lines, check_plot, draw
from headway.core.base.errors import InvalidSetting, StartError


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"\.svg or \.png"):
        check_plot(tmp_path / "figure.pdf")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="no folder"):
        check_plot(tmp_path / "nowhere" / "figure.svg")


def test_without_the_library_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(StartError, match=r"pip install 'headway\[plot\]'"):
        check_plot(tmp_path / "figure.svg")


def test_nothing_is_drawn_unless_it_is_asked_for() -> None:
    draw(None, [], "nothing")


@pytest.mark.parametrize("name", ["figure.svg", "figure.png"])
def test_bars_and_lines_are_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra headway[plot] is not installed")
    panels: list[Bars | Lines] = [
        Bars("times", "s", ["a", "b"], {"P50": [1.0, None], "P99": [2.0, 3.0]}),
        Lines("over time", "s", "requests", {"a": [(0.0, 1.0), (1.0, 2.0)]}),
    ]
    draw(tmp_path / name, panels, "two panels")
    assert (tmp_path / name).stat().st_size > 2000
