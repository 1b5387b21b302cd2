"""Fixtures of tests that start real processes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.processes import make_child_importable


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_child_importable(monkeypatch.setenv)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, which is limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)
