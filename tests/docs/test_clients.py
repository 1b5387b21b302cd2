"""The versions of clients in the documents are those that the tests install."""

from tests.clients.environments import environments
from tests.docs.documents import ROOT


def test_every_client_stands_in_the_document_with_the_version_that_is_tested() -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    for each in environments().values():
        first = (each.pip or each.npm)[0]
        version = first.rpartition("==" if each.pip else "@")[2]
        assert f"| {each.name} | {version} |" in text, "run: python -m tools.write_clients"
