"""Gemma 3 270M as people have it, Q4_K_M, on both executors against transformers.

Its matrices are of Q4_K, Q5_0, Q6_K and Q8_0. The reference is transformers' own class in
float32 with the weights that gguf's own code expands.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.settings import CpuSettings
from headway.compute.gpu.runner.loading import load_model as load_torch_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.close import relative_error
from tests.conftest import CACHE
from tests.gemma import fetch_gemma
from tests.parity.cpu_logits import BLOCK_SIZE, cpu_logits
from tests.parity.paged import paged_logits

TEXT = Path(__file__).parents[2] / "benchmarks" / "texts" / "prose.txt"
NUM_TOKENS = 300
NUM_GREEDY = 40
PROMPT = "The first thing to know about bread is that"
PARITY = 1e-4  # relative; the promise made to users of the torch executor
CLEAR_GAP = 0.5  # between the two best logits in float32
MOST_KL = 0.006  # measured: 0.0022
NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


@pytest.fixture(scope="module")
def gemma() -> ModelFile:
    return open_model(fetch_gemma(ConsoleProgress(), CACHE / "tests"))


@pytest.fixture(scope="module")
def text(gemma: ModelFile) -> list[int]:
    return encode(gemma, TEXT.read_text())[:NUM_TOKENS]


@pytest.fixture(scope="module")
def wanted(gemma: ModelFile, text: list[int]) -> tuple[Tensor, list[int], Tensor]:
    """By transformers: logits of the text; a greedy text with its prompt, and its logits."""
    model = reference(gemma.card.path)
    with torch.inference_mode():
        logits = model(torch.tensor([text])).logits[0]
        ids = encode(gemma, PROMPT)
        for _ in range(NUM_GREEDY):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        of_greedy = model(torch.tensor([ids])).logits[0]
    return logits, ids, of_greedy


@pytest.fixture(scope="module")
def ours(gemma: ModelFile) -> LoadedModel:
    settings = CpuSettings(threads=2)
    return load_model(gemma.card, settings, lambda done, total: None, num_positions=1024)


def encode(gemma: ModelFile, words: str) -> list[int]:
    return list(build_tokenizer(gemma).encode(words, add_special=True, parse_special=False))


def reference(path: str) -> Any:
    state: dict[str, Tensor] = {}
    for tensor in GGUFReader(path).tensors:
        values = torch.from_numpy(
            np.array(dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        )
        *block, stem, suffix = tensor.name.split(".")
        if "norm" in stem:
            values -= 1.0  # transformers adds it
        prefix = f"layers.{block[1]}." if block else ""
        state[f"model.{prefix}{NAMES[stem]}.{suffix}"] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=512,
        rms_norm_eps=1e-6,
        max_position_embeddings=32_768,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    )
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    rotary = type(model.model.rotary_emb)(config)  # its buffers are in no state dict
    embedding = type(model.model.embed_tokens)(1, 640, 0, embed_scale=640**0.5)
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = rotary
    model.model.embed_tokens.embed_scale = embedding.embed_scale
    return model.eval()


@pytest.mark.spec("A6")
def test_the_torch_executor_gives_the_logits_of_transformers(
    gemma: ModelFile, text: list[int], wanted: tuple[Tensor, list[int], Tensor]
) -> None:
    of_text, ids, of_greedy = wanted
    model = load_torch_model(gemma.card, ExecutorSettings(), lambda done, total: None)
    got = paged_logits(model, text, [256, NUM_TOKENS - 256], BLOCK_SIZE)
    worst = max(relative_error(g, w) for g, w in zip(got, of_text, strict=True))
    assert worst < PARITY, f"one position is off by {worst:.1e}"
    got = paged_logits(model, ids, [len(ids) - NUM_GREEDY] + [1] * NUM_GREEDY, BLOCK_SIZE)
    assert relative_error(got, of_greedy) < PARITY
    assert got.argmax(dim=-1)[-NUM_GREEDY - 1 : -1].tolist() == ids[-NUM_GREEDY:]


@pytest.mark.spec("A6")
def test_the_cpu_executor_judges_a_text_nearly_as_transformers_does(
    ours: LoadedModel, text: list[int], wanted: tuple[Tensor, list[int], Tensor]
) -> None:
    want = wanted[0]
    got = cpu_logits(ours, text, [256, NUM_TOKENS - 256])
    best = want.topk(2, dim=-1)
    clear = best.values[:, 0] - best.values[:, 1] > CLEAR_GAP
    assert clear.sum() > NUM_TOKENS / 2
    same = got.argmax(dim=-1) == best.indices[:, 0]
    share = float(same[clear].float().mean())
    assert share >= 0.97, f"{share:.1%} of {int(clear.sum())} clear positions"
    a, b = want.log_softmax(dim=-1), got.log_softmax(dim=-1)
    divergence = float((a.exp() * (a - b)).sum(dim=-1).double().mean())
    assert divergence < MOST_KL, f"KL {divergence:.4f}"


def test_the_cpu_executor_writes_the_same_greedy_text_but_for_near_ties(
    ours: LoadedModel, wanted: tuple[Tensor, list[int], Tensor]
) -> None:
    _, ids, want = wanted
    got = cpu_logits(ours, ids, [len(ids) - NUM_GREEDY] + [1] * NUM_GREEDY)
    best = want[-NUM_GREEDY - 1 : -1].topk(2, dim=-1)
    clear = best.values[:, 0] - best.values[:, 1] > CLEAR_GAP
    assert clear.sum() > NUM_GREEDY / 3
    chosen = got.argmax(dim=-1)[-NUM_GREEDY - 1 : -1]
    assert torch.equal(chosen[clear], torch.tensor(ids[-NUM_GREEDY:])[clear])
    assert torch.equal(cpu_logits(ours, ids, [7, len(ids) - 7]), got), "chunks change no bit"
