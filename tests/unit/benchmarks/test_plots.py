from xml.etree import ElementTree

import pytest

from benchmarks.plots import Axis, Series, chart, number, ticks

POINTS = [(1.0, 5.0), (2.0, 6.0), (16.0, 30.0)]
NAME = "{http://www.w3.org/2000/svg}"


def test_a_chart_is_xml_with_a_mark_for_every_measured_point() -> None:
    floor = Series("limit", [(1.0, 3.0), (16.0, 9.0)], is_floor=True)
    root = ElementTree.fromstring(chart("A & B", "x", "y", [Series("a", POINTS), floor]))
    assert len(root.findall(f"{NAME}circle")) == len(POINTS)
    lines = root.findall(f"{NAME}polyline")
    assert [("stroke-dasharray" in line.attrib) for line in lines] == [False, True]
    assert "A & B" in [text.text for text in root.iter(f"{NAME}text")]


def test_the_same_numbers_give_the_same_text() -> None:
    shuffled = [POINTS[1], POINTS[0], POINTS[2]]
    assert chart("t", "x", "y", [Series("a", POINTS)]) == chart(
        "t", "x", "y", [Series("a", shuffled)]
    )


def test_a_logarithmic_axis_gives_equal_room_to_equal_factors() -> None:
    axis = Axis("x", 1.0, 100.0, 0.0, 200.0)
    assert axis.at(1.0) == 0.0
    assert axis.at(10.0) == pytest.approx(100.0)
    assert axis.at(100.0) == pytest.approx(200.0)


@pytest.mark.parametrize("points", [[], [(1.0, 0.0)], [(0.0, 1.0)]])
def test_what_a_logarithm_cannot_show_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        chart("t", "x", "y", [Series("a", points)])


def test_ticks_are_round_and_few() -> None:
    assert ticks(0.9, 60.0) == pytest.approx([1, 2, 5, 10, 20, 50])
    assert ticks(1.0, 100_000.0) == pytest.approx([1, 10, 100, 1000, 10_000, 100_000])
    assert [number(value) for value in (8192.0, 0.5)] == ["8,192", "0.5"]
