"""Contexts longer than those of training: both executors against transformers.

Bounds are relative RMS errors of all logits, as in test_families.py and test_cpu_families.py.
"""

import random
from pathlib import Path

import pytest
import torch

from headway.compute.cpu.loading import load_model as load_cpu_model
from headway.compute.cpu.settings import CpuSettings, Quantization
from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.base.model_card import ModelCard
from headway.service.loaders.model_files import open_model
from tests.close import relative_error
from tests.parity.cpu_logits import cpu_logits
from tests.parity.folders import ORIGINAL_CONTEXT, VOCAB, logits_of, make, save
from tests.parity.paged import paged_logits
from tests.parity.test_families_gguf import converted, longrope

NUM_TOKENS = 150
IDS = random.Random(11).choices(range(VOCAB), k=NUM_TOKENS)
CHUNKS = [17, 1, 1, 31, 2, 1, 60, 1, 36]
EXACT, FLOAT_WEIGHTS = 1e-4, 8e-3
NAMES = ("qwen3, yarn", "phi3, longrope")


def nothing(done: int, total: int) -> None:
    """Progress that nobody reads."""


def on_cpu(card: ModelCard, ids: list[int], chunks: list[int]) -> torch.Tensor:
    settings = CpuSettings(threads=1, quantization=Quantization.NONE)
    return cpu_logits(load_cpu_model(card, settings, nothing), ids, chunks)


@pytest.mark.spec("D2")
@pytest.mark.parametrize("name", NAMES)
def test_the_cpu_executor_goes_beyond_the_original_context(name: str, tmp_path: Path) -> None:
    model = make(name)
    card = open_model(save(model, tmp_path)).card
    want = logits_of(model, IDS)
    whole = on_cpu(card, IDS, [NUM_TOKENS])
    worst = max(relative_error(g, w) for g, w in zip(whole, want, strict=True))
    assert worst < 3 * FLOAT_WEIGHTS, f"one position is off by {worst:.1e}"
    assert relative_error(whole, want) < FLOAT_WEIGHTS
    assert torch.equal(on_cpu(card, IDS, CHUNKS), whole)


def test_short_factors_are_for_servers_of_short_contexts(tmp_path: Path) -> None:
    model = make("phi3, longrope")
    card = open_model(save(model, tmp_path)).card
    ids = IDS[:ORIGINAL_CONTEXT]
    want = logits_of(model, ids)  # within the original context, so by the short factors
    short, long = card.for_context(ORIGINAL_CONTEXT), card.for_context(ORIGINAL_CONTEXT + 1)
    exact = {
        each: paged_logits(load_model(each, ExecutorSettings(), nothing), ids, [30, 1, 9])
        for each in (short, long)
    }
    assert relative_error(exact[short], want) < EXACT
    assert relative_error(exact[long], want) > 0.01, "the two sets make a difference"
    assert relative_error(on_cpu(short, ids, [30, 1, 9]), want) < FLOAT_WEIGHTS


def test_factors_of_a_gguf_file_are_chosen_by_the_context_too(tmp_path: Path) -> None:
    model = make("phi3, longrope")
    folder = open_model(save(model, tmp_path / "folder")).card
    card = open_model(converted(folder, tmp_path / "m.gguf", "phi3", longrope)).card
    want = logits_of(model, IDS)
    assert relative_error(on_cpu(card.for_context(256), IDS, CHUNKS), want) < FLOAT_WEIGHTS
    ids = IDS[:ORIGINAL_CONTEXT]
    short = on_cpu(card.for_context(ORIGINAL_CONTEXT), ids, [ORIGINAL_CONTEXT])
    assert relative_error(short, logits_of(model, ids)) < FLOAT_WEIGHTS
