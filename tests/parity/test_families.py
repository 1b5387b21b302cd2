"""Every family from a folder that transformers wrote: every logit, prefill and decode."""

import random
from pathlib import Path

import pytest
import torch

from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import AttentionChoice, ExecutorSettings
from headway.service.loaders.model_files import open_model
from tests.close import relative_error
from tests.parity.folders import MODELS, VOCAB, logits_of, make, save
from tests.parity.paged import paged_logits

NUM_TOKENS = 75
CHUNKS = {
    "whole": [NUM_TOKENS],
    "token by token": [1] * NUM_TOKENS,
    "odd chunks": [17, 1, 1, 31, 2, 1, 22],
}
IDS = random.Random(5).choices(range(VOCAB), k=NUM_TOKENS)
PARITY = 1e-4  # relative; the promise made to users


def nothing(done: int, total: int) -> None:
    """Progress that nobody reads."""


@pytest.mark.spec("A6")
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_folder_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = make(name)
    card = open_model(save(model, tmp_path)).card.for_context(128)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1, "several shards"
    want = logits_of(model, IDS)
    assert want.std() > 1.0, "a flat distribution would hide errors"
    for attention in AttentionChoice:
        loaded = load_model(card, ExecutorSettings(attention=attention), nothing)
        for way, chunks in CHUNKS.items():
            got = paged_logits(loaded, IDS, chunks)
            worst = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
            assert worst < PARITY, f"{attention}, {way}: one position is off by {worst:.1e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gemma3", "phi3", "qwen2"])
def test_halves_are_read_as_they_are(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make(name)
    card = open_model(save(model, tmp_path, dtype=dtype, shard_size="1GB")).card
    # Of the rounded weights, but not of rotary angles that are rounded with them.
    want = logits_of(type(model).from_pretrained(tmp_path, dtype=torch.float32), IDS)
    loaded = load_model(card, ExecutorSettings(), nothing)
    assert relative_error(paged_logits(loaded, IDS, [NUM_TOKENS]), want) < PARITY
