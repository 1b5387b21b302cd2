"""Supervisors over scripted children, and no child left behind by any test."""

import pytest

from tests.fault.processes import make_child_importable


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_child_importable(monkeypatch.setenv)
