"""Every row of docs/coverage.md is shown by a test, and every mark on a test is a row."""

import re

from tests.docs.documents import ROOT

PAGE = (ROOT / "docs" / "coverage.md").read_text()


def test_rows_and_marks_are_the_same() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \|", PAGE, re.MULTILINE)
    mark = re.compile(r"mark\.spec\(\"(\w+)\"\)")
    marks = {
        row
        for path in (ROOT / "tests").rglob("test_*.py")
        for row in mark.findall(path.read_text())
    }
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(marks)
