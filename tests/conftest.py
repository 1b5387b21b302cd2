"""Fixtures for tests that need the built-in model."""

import os
from pathlib import Path

import platformdirs
import pytest

from headway.compute.cpu import kernel_cache
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress

# Before any kernel is imported; the servers that tests start have the same folder.
kernel_cache.prepare(platformdirs.user_cache_path("headway") / "kernels")


@pytest.fixture(scope="session")
def smollm2_path() -> str:
    """Path of SmolLM2-135M-Instruct (Q4_1): HEADWAY_TEST_MODEL, or fetched into the cache."""
    given = os.environ.get("HEADWAY_TEST_MODEL")
    if given:
        return given
    cache = os.environ.get("HEADWAY_CACHE_DIR")
    return fetch_builtin(ConsoleProgress(), Path(cache) if cache else None)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: str) -> ModelFile:
    """The built-in model's header: card, vocabulary and template."""
    return open_model(smollm2_path)
