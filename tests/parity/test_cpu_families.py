"""The CPU executor against transformers: every family as a small random model.

Bounds are relative RMS errors of all logits, as in test_cpu_executor.py.
"""

import random
from pathlib import Path

import pytest
import torch

from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.settings import CpuSettings, Quantization
from headway.compute.gpu.runner.loading import load_model as load_torch_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.service.loaders.model_files import open_model
from tests.close import relative_error
from tests.parity.cpu_logits import ISAS, cpu_logits, mixed_logits
from tests.parity.families import (
    FAMILIES,
    Tiny,
    card_of,
    transformers_logits,
    transformers_model,
    write_gguf,
)
from tests.parity.folders import ON_CPU, make, save
from tests.parity.paged import paged_logits

NUM_TOKENS = 333  # over a chunk of attention and over every window
IDS = random.Random(9).choices(range(257), k=NUM_TOKENS)
CHUNKS = [17, 1, 1, 31, 2, 1, 98, 150, 32]
FLOAT_WEIGHTS = 8e-3
EXACT = 1e-4
EIGHT_BITS = 4e-2


def load(
    tiny: Tiny, path: Path, quantization: Quantization = Quantization.NONE, threads: int = 1
) -> LoadedModel:
    settings = CpuSettings(threads=threads, quantization=quantization)
    return load_model(card_of(tiny, path), settings, lambda done, total: None)


@pytest.mark.spec("D2")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_nearly_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    tiny = FAMILIES[family]
    model = transformers_model(tiny)
    path = write_gguf(tmp_path / "m.gguf", tiny, model)
    want = transformers_logits(model, IDS)
    assert want.std() > 1.0, "a flat distribution would hide errors"
    exact = load_torch_model(card_of(tiny, path), ExecutorSettings(), lambda done, total: None)
    assert relative_error(paged_logits(exact, IDS, CHUNKS), want) < EXACT, "the torch executor"
    got = cpu_logits(load(tiny, path), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < FLOAT_WEIGHTS
    worst = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
    assert worst < 3 * FLOAT_WEIGHTS, f"one position is off by {worst:.1e}"
    got = cpu_logits(load(tiny, path, Quantization.AUTO), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < EIGHT_BITS


@pytest.mark.parametrize("name", ON_CPU)
def test_folders_are_computed_too(name: str, tmp_path: Path) -> None:
    model = make(name)
    card = open_model(save(model, tmp_path)).card
    want = transformers_logits(model, IDS[:200])
    for quantization, bound in (
        (Quantization.NONE, FLOAT_WEIGHTS),
        (Quantization.AUTO, EIGHT_BITS),
    ):
        settings = CpuSettings(threads=1, quantization=quantization)
        loaded = load_model(card, settings, lambda done, total: None)
        assert relative_error(cpu_logits(loaded, IDS[:200], [150, 50]), want) < bound


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("quantized", ["F32", "Q8_0", "Q4_1"])
def test_chunks_and_threads_do_not_change_a_bit(
    family: str, quantized: str, tmp_path: Path
) -> None:
    tiny = FAMILIES[family]
    path = write_gguf(tmp_path / "m.gguf", tiny, transformers_model(tiny), quantized)
    whole = cpu_logits(load(tiny, path), IDS, [NUM_TOKENS])
    for threads in (1, 2, 3):
        for chunks in (CHUNKS, [1] * 40 + [NUM_TOKENS - 40]):
            got = cpu_logits(load(tiny, path, threads=threads), IDS, chunks, 32)
            assert torch.equal(got, whole), f"{threads} threads, {chunks}"


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_alone_and_in_a_mix_gives_the_same_bits(
    family: str, threads: int, tmp_path: Path
) -> None:
    tiny = FAMILIES[family]
    path = write_gguf(tmp_path / "m.gguf", tiny, transformers_model(tiny), "Q8_0")
    model = load(tiny, path, threads=threads)
    texts = [random.Random(seed).choices(range(257), k=90) for seed in range(3)]
    alone = [cpu_logits(model, ids, [90]) for ids in texts]
    chunks = [[60, 0, 1], *[[1, 2, 0]] * 20, [0, 50, 80], *[[1, 0, 1]] * 9, [1, 0, 0]]
    assert [sum(each) for each in zip(*chunks, strict=True)] == [90, 90, 90]
    for got, want in zip(mixed_logits(model, texts, chunks), alone, strict=True):
        assert torch.equal(got, want)


def test_all_families_of_instructions_give_the_same_bits(tmp_path: Path) -> None:
    tiny = FAMILIES["gemma3"]
    path = write_gguf(tmp_path / "m.gguf", tiny, transformers_model(tiny), "Q4_1")
    found = [
        cpu_logits(
            load_model(
                card_of(tiny, path), CpuSettings(threads=1), lambda done, total: None, isa=isa
            ),
            IDS,
            CHUNKS,
        )
        for isa in ISAS
    ]
    for isa, logits in zip(ISAS, found, strict=True):
        assert torch.equal(logits, found[0]), isa
