"""Servers for the end-to-end tests; after each test the shared one must be alive and clean."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server import PROBE, Server, seed, until


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder talks to a real server."""
    for item in items:
        if "tests/e2e/" in str(item.path):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """One server of the built-in model with default settings."""
    folder = tmp_path_factory.mktemp("server")
    seed(folder)
    server = Server(folder, smollm2_path).wait_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def probe_text(shared_server: Server) -> str:
    """What the probe answered before any case ran."""
    text = shared_server.complete(**PROBE)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


@pytest.fixture
def server(shared_server: Server, probe_text: str) -> Iterator[Server]:
    """The shared server; afterwards it answers as before and holds nothing."""
    yield shared_server
    until(shared_server.is_idle_and_clean, 5.0, "idle and clean")
    assert shared_server.complete(**PROBE)["choices"][0]["text"] == probe_text
    assert shared_server.status_of("/ready") == 200


@pytest.fixture
def start_model(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of a model with options of a test's own, and stops them."""
    started: list[Server] = []

    def start_one(model: str, *options: str, wait: bool = True) -> Server:
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        seed(folder)
        server = Server(folder, model, *options)
        started.append(server)
        return server.wait_ready() if wait else server

    yield start_one
    for server in started:
        server.stop()


@pytest.fixture
def start(start_model: Callable[..., Server], smollm2_path: str) -> Callable[..., Server]:
    """The same with the built-in model."""
    return functools.partial(start_model, smollm2_path)
