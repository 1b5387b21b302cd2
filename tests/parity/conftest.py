"""The built-in model's file, for tests that need the real one."""

import os
from pathlib import Path

import pytest

from headway.core.base.model_card import ModelCard
from tests.parity.cards import read_card

ENVIRONMENT = "HEADWAY_TEST_MODEL"


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """Path of SmolLM2-135M-Instruct (Q4_1 GGUF)."""
    path = os.environ.get(ENVIRONMENT)
    if path is None or not Path(path).is_file():
        pytest.fail(f"set {ENVIRONMENT} to the path of the SmolLM2-135M-Instruct Q4_1 GGUF file")
    return Path(path)


@pytest.fixture(scope="session")
def smollm_card(smollm_path: Path) -> ModelCard:
    """Its card."""
    return read_card(smollm_path)
