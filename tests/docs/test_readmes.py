"""The README of a package names every file of it, so that a reader knows which one to open."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

PARTS = [path for part in ("core", "service") for path in (ROOT / "headway" / part).iterdir()]
PACKAGES = sorted(
    path for path in [*PARTS, ROOT / "headway" / "app"] if (path / "README.md").exists()
)
MOST_LINES = 60  # a page
BESIDE = {"bench_overload_client", "bench_overload_report", "bench_overload_sites"}


def name_of(package: Path) -> str:
    return str(package.relative_to(ROOT / "headway"))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_it_names_every_file_and_none_that_has_gone(package: Path) -> None:
    text = (package / "README.md").read_text()
    files = {path.stem for path in package.glob("*.py")} - {"__init__"} - BESIDE
    assert [name for name in sorted(files) if not re.search(rf"\b{name}\b", text)] == []
    named = set(re.findall(r"`(\w+\.py)`", text))
    known = {path.name for path in (ROOT / "headway").rglob("*.py")}
    assert sorted(named - known) == []
    assert len(text.splitlines()) <= MOST_LINES
