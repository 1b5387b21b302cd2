"""Documents made from the code are what the code would make now."""

import pytest

from tests.docs.documents import ROOT
from tools.write_docs import DOCUMENTS, table


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_is_current(name: str) -> None:
    written = (ROOT / "docs" / name).read_text()
    assert written == DOCUMENTS[name](), "run: python tools/write_docs.py"


def test_a_bar_inside_a_cell_does_not_end_it() -> None:
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"
