"""Fixtures for tests that need the built-in model, or a real database; how property tests try."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import platformdirs
import pytest

from headway.compute.cpu import kernel_cache
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from tests.services.servers import Postgres, Redis, postgres, redis_at_work

CACHE = Path(os.environ.get("HEADWAY_CACHE_DIR") or platformdirs.user_cache_path("headway"))

# Beside other workers more threads of torch's would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Always the same examples, in whatever time this machine takes; LONG=1 tries many new ones.
hypothesis.settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("long" if os.environ.get("LONG") == "1" else "fixed")

# Before any test imports a kernel. Numba's own folders know a kernel by its own source file only,
# so that a test could run code compiled from sources that were changed since.
kernel_cache.prepare(CACHE / "kernels")


TRACED = ("tests/unit/core/", "tests/conformance/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only what the tests of the core reach is covered: tracing the others takes time."""
    for item in items:
        if not item.nodeid.startswith(TRACED):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session", autouse=True)
def _own_data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written to the data folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        patch.delenv("HEADWAY_DATA_DIR", raising=False)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> str:
    """Path of SmolLM2-135M-Instruct (Q4_1): HEADWAY_TEST_MODEL, or fetched into the cache."""
    given = os.environ.get("HEADWAY_TEST_MODEL")
    if given:
        return given
    return fetch_builtin(ConsoleProgress(), CACHE)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: str) -> ModelFile:
    """The built-in model's header: card, vocabulary and template."""
    return open_model(smollm2_path)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL, shared by the session."""
    with postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """A new, empty database."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres_server.fresh(name)
    postgres_server.drop(name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A real Redis, shared by the session."""
    with redis_at_work() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """An empty Redis."""
    redis_server.empty()
    return redis_server.url
