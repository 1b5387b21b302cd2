"""Small random Llamas against transformers: every logit, prefill and decode."""

import random
from pathlib import Path

import numpy as np
import pytest

from headway.compute.arch.rope import inverse_frequencies
from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import (
    AttentionChoice,
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
)
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from tests.close import relative_error
from tests.parity.cards import read_card
from tests.parity.paged import paged_logits
from tests.parity.tiny_llama import TinyLlama, write_gguf
from tests.parity.transformers_llama import transformers_llama, transformers_logits

LINEAR = RopeScaling(kind=RopeScalingKind.LINEAR, factor=4.0)
LLAMA3 = RopeScaling(
    kind=RopeScalingKind.LLAMA3,
    factor=8.0,
    original_context=64,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)
MODELS = {
    "grouped heads, tied": (TinyLlama(), None),
    "one kv head, untied": (TinyLlama(num_kv_heads=1, is_tied=False, seed=1), None),
    "own kv heads, untied": (TinyLlama(num_kv_heads=4, is_tied=False, seed=2), None),
    "odd heads": (TinyLlama(hidden_size=72, num_heads=9, num_kv_heads=3, head_dim=8, seed=3), None),
    "head_dim apart from hidden": (TinyLlama(head_dim=24, seed=4), None),
    "linear scaling": (TinyLlama(seed=5), LINEAR),
    "llama3 scaling": (TinyLlama(seed=6), LLAMA3),
    "biases": (TinyLlama(has_bias=True, seed=7), None),
}
NUM_TOKENS = 101
CHUNKS = {
    "whole": [NUM_TOKENS],
    "token by token": [1] * NUM_TOKENS,
    "chunks of 16": [16] * 6 + [5],
    "odd chunks": [17, 1, 1, 31, 2, 1, 48],
}
IDS = random.Random(5).choices(range(257), k=NUM_TOKENS)
PARITY = 1e-4  # relative; the promise made to users


def nothing(done: int, total: int) -> None:
    """Progress that nobody reads."""


@pytest.mark.spec("D1")
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    tiny, scaling = MODELS[name]
    path = write_gguf(tmp_path / "tiny.gguf", tiny)
    card = read_card(path, scaling)
    want = transformers_logits(transformers_llama(card, path), IDS)
    assert want.std() > 1.0, "a flat distribution would hide errors"
    for attention in AttentionChoice:
        model = load_model(card, ExecutorSettings(attention=attention), nothing)
        for way, chunks in CHUNKS.items():
            got = paged_logits(model, IDS, chunks)
            assert relative_error(got, want) < PARITY, f"{attention}, {way}"
            worst = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
            assert worst < PARITY, f"{attention}, {way}: one position is off by {worst:.1e}"


@pytest.mark.parametrize("quantized", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantized_files_give_the_logits_of_their_expanded_weights(
    quantized: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TinyLlama(seed=8), quantized=quantized)
    card = read_card(path)
    want = transformers_logits(transformers_llama(card, path), IDS)
    model = load_model(card, ExecutorSettings(), nothing)
    assert relative_error(paged_logits(model, IDS, CHUNKS["odd chunks"]), want) < PARITY


def test_factors_of_the_file_are_the_whole_of_llama3_scaling_weights_loading_02(
    tmp_path: Path,
) -> None:
    tiny = TinyLlama(seed=9)
    plain = read_card(write_gguf(tmp_path / "plain.gguf", tiny))
    scaled = read_card(Path(plain.path), LLAMA3)
    factors = inverse_frequencies(plain, None) / inverse_frequencies(scaled, None)
    path = write_gguf(
        tmp_path / "factors.gguf",
        tiny,
        replaced={"rope_freqs.weight": factors.astype(np.float32)},
    )
    want = transformers_logits(transformers_llama(scaled, Path(plain.path)), IDS)
    for scaling in (None, LLAMA3):
        model = load_model(read_card(path, scaling), ExecutorSettings(), nothing)
        assert relative_error(paged_logits(model, IDS, [NUM_TOKENS]), want) < PARITY


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TinyLlama(is_tied=False, seed=10))
    card = read_card(path)
    want = transformers_logits(transformers_llama(card, path), IDS)
    for attention in AttentionChoice:
        settings = ExecutorSettings(dtype=DtypeChoice.BFLOAT16, attention=attention)
        model = load_model(card, settings, nothing)
        assert model.bytes_per_kv_value == 2
        for chunks in CHUNKS.values():
            assert relative_error(paged_logits(model, IDS, chunks), want) < 5e-2


@pytest.mark.parametrize("chunk", [511, 8191])
def test_the_far_end_of_a_long_context_equals_transformers(chunk: int, tmp_path: Path) -> None:
    tiny = TinyLlama(num_layers=1, context_length=8192, rope_theta=100_000.0, seed=12)
    path = write_gguf(tmp_path / "tiny.gguf", tiny)
    card = read_card(path)
    ids = random.Random(6).choices(range(257), k=8192)
    want = transformers_logits(transformers_llama(card, path), ids)[-600:]
    model = load_model(card, ExecutorSettings(), nothing)
    whole, rest = divmod(8192, chunk)
    chunks = [chunk] * whole + [1] * rest
    got = paged_logits(model, ids, chunks, block_size=16)[-600:]
    # transformers turns its heads by float32 angles, which are off by 5e-4 at this distance.
    assert relative_error(got, want) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_a_gpu_gives_the_logits_of_transformers(dtype: DtypeChoice, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TinyLlama(seed=13))
    card = read_card(path)
    want = transformers_logits(transformers_llama(card, path), IDS)
    settings = ExecutorSettings(device=DeviceChoice.CUDA, dtype=dtype)
    model = load_model(card, settings, nothing)
    for chunks in CHUNKS.values():
        got = paged_logits(model, IDS, chunks).cpu()
        assert relative_error(got, want) < (PARITY if dtype is DtypeChoice.FLOAT32 else 5e-2)
