"""What the README claims stands in the pages that it names."""

import re

import pytest

from tests.docs.documents import ROOT

TEXT = (ROOT / "README.md").read_text()
CLAIMS = [line for line in TEXT.splitlines() if re.search(r"\*\*\d", line)]


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: str(row)[:40])
def test_every_figure_stands_in_the_page_beside_it(row: str) -> None:
    (page,) = re.findall(r"\]\((docs/[\w.-]+)\) \|$", row)
    known = set(re.findall(r"\d+(?:\.\d+)?", (ROOT / page).read_text()))
    figures = re.findall(r"\*\*(\d+(?:\.\d+)?)\*\*", row)
    assert [figure for figure in figures if figure not in known] == []


def test_there_are_figures() -> None:
    assert len(CLAIMS) >= 4
