"""The CPU executor against transformers and the torch executor: small random Llamas.

Where weights are float32 nothing is rounded but what attention multiplies, to bfloat16 (Q, K,
V and the weights of softmax): 2^-9 at most, of each.
Where they are quantized the inputs of matrices are too, to 8 bits: 1/254 of a group's largest
at most. Both are a random walk through the layers; the bounds are about twice what these
models show.
"""

import random
from pathlib import Path

import pytest
import torch

from headway.compute.cpu.conversion import NEAREST
from headway.compute.cpu.settings import KvDtype, Quantization
from headway.compute.gpu.runner.loading import load_model as load_torch_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.base.errors import ExecutorUnsuitable
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from tests.close import relative_error
from tests.parity.cards import read_card
from tests.parity.cpu_logits import ISAS, cpu_logits, load
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
    "grouped heads, tied": (TinyLlama(head_dim=32), None),
    "one kv head, untied": (TinyLlama(head_dim=32, num_kv_heads=1, is_tied=False, seed=1), None),
    "own kv heads, untied": (TinyLlama(head_dim=32, num_kv_heads=4, is_tied=False, seed=2), None),
    "nine heads of 64": (
        TinyLlama(hidden_size=288, num_heads=9, num_kv_heads=3, head_dim=64, seed=3),
        None,
    ),
    "heads of 96": (TinyLlama(num_heads=2, num_kv_heads=1, head_dim=96, seed=4), None),
    "biases": (TinyLlama(head_dim=32, has_bias=True, seed=14), None),
    "linear scaling": (TinyLlama(head_dim=32, seed=5), LINEAR),
    "llama3 scaling": (TinyLlama(head_dim=64, seed=6), LLAMA3),
}
NUM_TOKENS = 101
CHUNKS = {
    "token by token": [1] * NUM_TOKENS,
    "chunks of 16": [16] * 6 + [5],
    "odd chunks": [17, 1, 1, 31, 2, 1, 48],
}
IDS = random.Random(5).choices(range(257), k=NUM_TOKENS)
ROUNDED_ATTENTION = 8e-3  # relative RMS error of all logits
KV_OF_8_BITS = 2e-2
ROUNDED_INPUTS = 4e-2


@pytest.mark.spec("D1")
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_float32_weights_are_near_those_of_transformers(
    name: str, tmp_path: Path
) -> None:
    tiny, scaling = MODELS[name]
    path = write_gguf(tmp_path / "tiny.gguf", tiny)
    want = transformers_logits(transformers_llama(read_card(path, scaling), path), IDS)
    assert want.std() > 1.0, "a flat distribution would hide errors"
    got = cpu_logits(load(path, scaling=scaling), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < ROUNDED_ATTENTION
    worst = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
    assert worst < 2 * ROUNDED_ATTENTION, f"one position is off by {worst:.1e}"


@pytest.mark.spec("D4")
@pytest.mark.parametrize("name", MODELS)
def test_8_bits_of_kv_cost_little_more(name: str, tmp_path: Path) -> None:
    tiny, scaling = MODELS[name]
    path = write_gguf(tmp_path / "tiny.gguf", tiny)
    want = transformers_logits(transformers_llama(read_card(path, scaling), path), IDS)
    model = load(path, scaling=scaling, kv_cache_dtype="int8")
    assert relative_error(cpu_logits(model, IDS, [NUM_TOKENS]), want) < KV_OF_8_BITS


@pytest.mark.spec("D1")
@pytest.mark.parametrize(
    ("quantized", "bound"),
    [
        ("F16", ROUNDED_ATTENTION),
        ("BF16", ROUNDED_ATTENTION),
        ("Q8_0", ROUNDED_INPUTS),
        ("Q4_0", ROUNDED_INPUTS),
        ("Q4_1", ROUNDED_INPUTS),
    ],
)
def test_quantized_files_give_nearly_the_logits_of_their_expanded_weights(
    quantized: str, bound: float, tmp_path: Path
) -> None:
    tiny = TinyLlama(head_dim=32, seed=8)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, quantized=quantized)
    exact = load_torch_model(read_card(path), ExecutorSettings(), lambda done, total: None)
    want = paged_logits(exact, IDS, [NUM_TOKENS])
    assert relative_error(cpu_logits(load(path), IDS, [NUM_TOKENS]), want) < bound


@pytest.mark.spec("D2")
@pytest.mark.parametrize("quantized", [*NEAREST, "mixed"])
def test_types_that_no_kernel_reads_give_nearly_the_logits_of_their_expanded_weights(
    quantized: str, tmp_path: Path
) -> None:
    tiny = TinyLlama(hidden_size=256, intermediate_size=512, num_heads=4, head_dim=64, seed=13)
    formats = {"blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "Q6_K"}
    path = write_gguf(
        tmp_path / "tiny.gguf",
        tiny,
        quantized="Q4_K" if quantized == "mixed" else quantized,
        formats=formats if quantized == "mixed" else {},
    )
    exact = load_torch_model(read_card(path), ExecutorSettings(), lambda done, total: None)
    want = paged_logits(exact, IDS, [NUM_TOKENS])
    reference = transformers_logits(transformers_llama(read_card(path), path), IDS)
    assert relative_error(want, reference) < 1e-4, "torch expands them as gguf's own code does"
    got = cpu_logits(load(path), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < ROUNDED_INPUTS, "--quantization none"
    model = load(path, quantization=Quantization.AUTO, threads=2)
    found = cpu_logits(model, IDS, [NUM_TOKENS])
    assert relative_error(found, want) < ROUNDED_INPUTS
    assert torch.equal(cpu_logits(model, IDS, CHUNKS["odd chunks"]), found)


@pytest.mark.parametrize("quantized", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kv", KvDtype)
def test_chunks_threads_and_blocks_do_not_change_a_bit(
    quantized: str, threads: int, kv: KvDtype, tmp_path: Path
) -> None:
    tiny = TinyLlama(head_dim=32, num_heads=6, num_kv_heads=2, is_tied=False, seed=9)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, quantized=quantized)
    whole = cpu_logits(load(path, kv_cache_dtype=kv), IDS, [NUM_TOKENS])
    for way, chunks in CHUNKS.items():
        for block_size in (16, 32):
            model = load(path, threads=threads, kv_cache_dtype=kv)
            got = cpu_logits(model, IDS, chunks, block_size)
            assert torch.equal(got, whole), f"{way}, blocks of {block_size}"


@pytest.mark.parametrize("quantized", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_all_families_of_instructions_give_the_same_bits(quantized: str, tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, is_tied=False, seed=10)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, quantized=quantized)
    found = [cpu_logits(load(path, isa=isa), IDS, CHUNKS["odd chunks"]) for isa in ISAS]
    for isa, logits in zip(ISAS, found, strict=True):
        assert torch.equal(logits, found[0]), isa


def test_matrices_of_mixed_types_that_share_an_input_are_computed_in_float32(
    tmp_path: Path,
) -> None:
    tiny = TinyLlama(head_dim=32, seed=11)
    names = ("blk.0.attn_v.weight", "blk.1.ffn_up.weight")
    plain = write_gguf(tmp_path / "plain.gguf", tiny)
    mixed = write_gguf(tmp_path / "mixed.gguf", tiny, formats=dict.fromkeys(names, "F16"))
    want = transformers_logits(transformers_llama(read_card(mixed), mixed), IDS)
    got = cpu_logits(load(mixed), IDS, [NUM_TOKENS])
    assert relative_error(got, want) < ROUNDED_ATTENTION
    assert not torch.equal(got, cpu_logits(load(plain), IDS, [NUM_TOKENS]))


def test_what_the_cpu_executor_cannot_compute_is_refused_with_another_way(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TinyLlama(head_dim=24))
    with pytest.raises(ExecutorUnsuitable, match="--executor torch") as caught:
        load(path)
    assert "heads of 24 values" in caught.value.message
