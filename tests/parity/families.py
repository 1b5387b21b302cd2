"""Small random models of the families, written to GGUF by the names that our tables give.

Weights are transformers' own classes' under the names of a Hugging Face folder; what stands
for them in a GGUF file is the tensor of the same part, with what a converter adds to norms.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from headway.compute.arch.family import Part, TensorSpec
from headway.compute.arch.registry import tensor_specs
from headway.core.base.model_card import Activation, FileFormat, ModelCard
from tests.blocks import quantized as quantized_rows

VOCAB = 257


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """One family: what its class is told, and what its card says beside that."""

    family: str
    model_class: str
    hidden_size: int = 96
    intermediate_size: int = 160
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    num_layers: int = 3
    rope_dim: int = 32
    rope_theta: float = 10_000.0
    local_rope_theta: float = 0.0
    norm_eps: float = 1e-6
    is_tied: bool = True
    sliding_windows: tuple[int, ...] = ()
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    query_scale: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


QWEN2 = Tiny(
    family="qwen2",
    model_class="Qwen2",
    hidden_size=128,  # its heads are of hidden_size / num_heads values
    rope_theta=1e6,
    is_tied=False,
    config={"rope_parameters": _rope(1e6)},
    seed=1,
)
QWEN3 = Tiny(
    family="qwen3",
    model_class="Qwen3",
    rope_theta=1e6,
    config={"head_dim": 32, "rope_parameters": _rope(1e6)},
    seed=2,
)
GEMMA3 = Tiny(
    family="gemma3",
    model_class="Gemma3",
    head_dim=64,
    rope_dim=64,
    rope_theta=1e6,
    local_rope_theta=10_000.0,
    sliding_windows=(24, 24, 0),
    activation=Activation.GELU_TANH,
    embedding_scale=float(np.float32(96**0.5)),
    query_scale=40**-0.5,
    config={
        "head_dim": 64,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 40,
        "rope_parameters": {"sliding_attention": _rope(10_000.0), "full_attention": _rope(1e6)},
    },
    seed=3,
)
PHI3 = Tiny(
    family="phi3",
    model_class="Phi3",
    hidden_size=128,
    rope_dim=24,
    is_tied=False,
    config={"rope_parameters": _rope(10_000.0, partial_rotary_factor=0.75)},
    seed=4,
)
MISTRAL = Tiny(
    family="mistral",
    model_class="Mistral",
    is_tied=False,
    sliding_windows=(37,) * 3,
    config={"head_dim": 32, "sliding_window": 37, "rope_parameters": _rope(10_000.0)},
    seed=5,
)
FAMILIES = {each.family: each for each in (QWEN2, QWEN3, GEMMA3, PHI3, MISTRAL)}


def card_of(tiny: Tiny, path: Path | str) -> ModelCard:
    """The card of its GGUF file."""
    shared = {
        name: getattr(tiny, name)
        for name in ModelCard.__struct_fields__
        if hasattr(tiny, name) and name != "path"
    }
    return ModelCard(
        path=str(path),
        name=tiny.family,
        architecture=tiny.family,
        vocab_size=VOCAB,
        context_length=1024,
        **shared,
    )


def transformers_model(tiny: Tiny) -> Any:
    """A random float32 model; norms away from 1, biases from 0, logits of a few units."""
    name = (
        f"{tiny.model_class}TextConfig" if tiny.family == "gemma3" else f"{tiny.model_class}Config"
    )
    config = getattr(transformers, name)(
        vocab_size=VOCAB,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.num_layers,
        num_attention_heads=tiny.num_heads,
        num_key_value_heads=tiny.num_kv_heads,
        max_position_embeddings=1024,
        rms_norm_eps=tiny.norm_eps,
        tie_word_embeddings=tiny.is_tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
        **tiny.config,
    )
    model = getattr(transformers, f"{tiny.model_class}ForCausalLM")(config).eval().float()
    generator = torch.Generator().manual_seed(tiny.seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            noise = torch.randn(values.shape, generator=generator)
            if values.ndim > 1:
                size = 3.0 if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 1.0
                values.copy_(noise * size / values.shape[1] ** 0.5)
            elif name.endswith("bias"):
                values.copy_(noise)
            else:
                values.copy_(0.1 * noise + (0.0 if tiny.family == "gemma3" else 1.0))
    return model


def write_gguf(path: Path, tiny: Tiny, model: Any, quantized: str = "F32") -> Path:
    """The tensors, and no metadata: the card is `card_of`."""
    card = card_of(tiny, path)
    folder = msgspec.structs.replace(card, file_format=FileFormat.SAFETENSORS)
    state = model.state_dict()
    named: dict[tuple[Any, ...], TensorSpec] = {_key(spec): spec for spec in tensor_specs(folder)}
    parts: dict[str, list[np.ndarray]] = {}
    for spec in tensor_specs(card):
        source = named.get(_key(spec))
        if source is None or source.name not in state or (spec.part is Part.HEAD and tiny.is_tied):
            continue
        rows = slice(source.first_row, source.first_row + source.shape[0])
        parts.setdefault(spec.name, []).append(state[source.name][rows].numpy() + source.added)
    writer = GGUFWriter(str(path), tiny.family)
    for name, pieces in parts.items():
        values = np.ascontiguousarray(np.concatenate(pieces), np.float32)
        if values.ndim > 1 and quantized != "F32":
            kind = GGMLQuantizationType[quantized]
            writer.add_tensor(name, quantized_rows(quantized, values), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _key(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.layer, spec.part, spec.is_bias


@torch.inference_mode()
def transformers_logits(model: Any, ids: list[int]) -> Tensor:
    """[len(ids), V] of one plain pass."""
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits.float()
