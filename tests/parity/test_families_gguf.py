"""The same families as GGUF files, under the names that converters give."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from headway.compute.arch.family import TensorSpec
from headway.compute.arch.registry import tensor_specs
from headway.compute.arch.rope import rotation_scale
from headway.compute.formats.opening import open_weights
from headway.compute.gpu.runner.loading import load_model
from headway.compute.gpu.runner.settings import ExecutorSettings
from headway.core.base.model_card import FileFormat, ModelCard
from headway.service.loaders.model_files import open_model
from tests.close import relative_error
from tests.parity.folders import (
    LINEAR,
    LONG_FACTORS,
    ORIGINAL_CONTEXT,
    SHORT_FACTORS,
    VOCAB,
    YARN,
    logits_of,
    make,
    save,
)
from tests.parity.paged import paged_logits

IDS = random.Random(5).choices(range(VOCAB), k=75)
CHUNKS = [17, 1, 1, 31, 2, 1, 22]
PARITY = 1e-4
Extra = Callable[[GGUFWriter], None]


def nothing(done: int, total: int) -> None:
    """Progress that nobody reads."""


def windows(writer: GGUFWriter) -> None:
    writer.add_sliding_window(20)
    writer.add_float32("gemma3.rope.freq_base_swa", 100.0)


def linear_windows(writer: GGUFWriter) -> None:
    windows(writer)
    writer.add_string("gemma3.rope.scaling.type", "linear")
    writer.add_rope_scaling_factor(float(LINEAR["factor"]))


def none(writer: GGUFWriter) -> None:
    """Nothing more."""


def window_of_23(writer: GGUFWriter) -> None:
    writer.add_sliding_window(23)


def yarn(writer: GGUFWriter) -> None:
    writer.add_string("qwen2.rope.scaling.type", "yarn")
    writer.add_rope_scaling_factor(YARN["factor"])
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)


def longrope(writer: GGUFWriter) -> None:
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
    factor = 256 / ORIGINAL_CONTEXT
    attention = (1 + math.log(factor) / math.log(ORIGINAL_CONTEXT)) ** 0.5
    writer.add_rope_scaling_attn_factors(attention)
    writer.add_tensor("rope_factors_short.weight", np.array(SHORT_FACTORS, np.float32))
    writer.add_tensor("rope_factors_long.weight", np.array(LONG_FACTORS, np.float32))


FILES: dict[str, tuple[str, Extra]] = {
    "qwen2": ("qwen2", none),
    "qwen3": ("qwen3", none),
    "gemma3": ("gemma3", windows),
    "gemma3, linear scaling": ("gemma3", linear_windows),
    "phi3, partly rotated": ("phi3", none),
    "phi3, window": ("phi3", window_of_23),
    "qwen2, yarn": ("qwen2", yarn),
    "phi3, longrope": ("phi3", longrope),
}


def converted(card: ModelCard, path: Path, architecture: str, extra: Extra) -> str:
    """The card's folder as a GGUF file; names come from a list written out below."""
    writer = GGUFWriter(str(path), architecture)
    writer.add_block_count(card.num_layers)
    writer.add_context_length(card.context_length)
    writer.add_embedding_length(card.hidden_size)
    writer.add_feed_forward_length(card.intermediate_size)
    writer.add_head_count(card.num_heads)
    writer.add_head_count_kv(card.num_kv_heads)
    writer.add_key_length(card.head_dim)
    writer.add_value_length(card.head_dim)
    writer.add_rope_dimension_count(card.rope_dim)
    writer.add_rope_freq_base(card.rope_theta)
    writer.add_layer_norm_rms_eps(card.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    extra(writer)
    whole: dict[str, Any] = {}
    specs = tensor_specs(card)
    weights = open_weights(card, specs)
    for spec in specs:
        if spec in weights:
            # Of fused tensors the parts come one after another.
            parts = whole.setdefault(gguf_name(spec, architecture), [])
            parts.append(weights.read(spec))
    for name, parts in whole.items():
        writer.add_tensor(name, np.concatenate(parts))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


STEMS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_STEMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(spec: TensorSpec, architecture: str) -> str:
    if spec.name in OUTER:
        return OUTER[spec.name]
    stem, _, suffix = spec.name.removeprefix(f"model.layers.{spec.layer}.").rpartition(".")
    stems = {**STEMS, **GEMMA_STEMS} if architecture == "gemma3" else STEMS
    return f"blk.{spec.layer}.{stems[stem]}.{suffix}"


@pytest.mark.parametrize("name", FILES)
def test_logits_of_a_gguf_file_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, extra = FILES[name]
    model = make(name)
    if architecture == "gemma3":  # files do not say how scores are scaled
        model.config.query_pre_attn_scalar = 32
        for layer in model.model.layers:
            layer.self_attn.scaling = 32**-0.5
    folder = open_model(save(model, tmp_path / "folder")).card
    path = converted(folder, tmp_path / "m.gguf", architecture, extra)
    card = open_model(path).card
    assert card.file_format is FileFormat.GGUF
    assert card.sliding_windows == folder.sliding_windows
    assert rotation_scale(card) == pytest.approx(rotation_scale(folder))
    want = logits_of(model, IDS)
    got = paged_logits(load_model(card, ExecutorSettings(), nothing), IDS, CHUNKS)
    assert torch.isfinite(got).all()
    assert relative_error(got, want) < PARITY
