"""The table of families is what readers and parity tests know now."""

from tests.docs.documents import ROOT
from tools.write_models import families, written


def test_the_table_of_families_is_current() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    assert written(text) == text, "run: python -m tools.write_models"


def test_every_family_is_compared_on_both_executors() -> None:
    rows = families().splitlines()[2:]
    table = [row for row in rows if row.startswith("|")]
    assert len(table) > 5
    assert not [row for row in table if "not compared" in row]
