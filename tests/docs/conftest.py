"""A server for the samples."""

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """`headway serve` with the built-in model and default settings."""
    server = Server(tmp_path_factory.mktemp("server"), smollm2_path)
    try:
        yield server.wait_ready()
    finally:
        server.stop()
