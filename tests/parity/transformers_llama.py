"""The independent implementation: transformers' Llama, or Mistral where there are sliding windows.

Its weights are those that gguf's own code expands.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from headway.core.base.model_card import ModelCard, RopeScaling, RopeScalingKind

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def transformers_llama(card: ModelCard, path: Path) -> Any:
    """A float32 LlamaForCausalLM with the file's weights; ignores `rope_freqs.weight`."""
    state: dict[str, Tensor] = {}
    for tensor in GGUFReader(str(path)).tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = torch.from_numpy(np.array(array))
        if tensor.name in TOP:
            state[TOP[tensor.name]] = values
        elif tensor.name.startswith("blk."):
            _, layer, stem, suffix = tensor.name.split(".")
            heads = {"attn_q": card.num_heads, "attn_k": card.num_kv_heads}.get(stem)
            if heads is not None:
                pairs = values.reshape(heads, -1, 2, *values.shape[1:])
                values = pairs.transpose(1, 2).reshape(values.shape)
            state[f"model.layers.{layer}.{NAMES[stem]}.{suffix}"] = values
    is_tied = "lm_head.weight" not in state
    window = card.sliding_windows[0] if card.sliding_windows else None
    config_of, model_of = (
        (LlamaConfig, LlamaForCausalLM) if window is None else (MistralConfig, MistralForCausalLM)
    )
    more = {} if window is None else {"sliding_window": window}
    config = config_of(
        vocab_size=card.vocab_size,
        hidden_size=card.hidden_size,
        intermediate_size=card.intermediate_size,
        num_hidden_layers=card.num_layers,
        num_attention_heads=card.num_heads,
        num_key_value_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        rms_norm_eps=card.norm_eps,
        max_position_embeddings=card.context_length,
        tie_word_embeddings=is_tied,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in state,
        rope_parameters=_rope_parameters(card.rope_theta, card.rope_scaling),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **more,
    )
    with torch.device("meta"):
        model = model_of(config)
    if is_tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    rotary = type(model.model.rotary_emb)(config)  # its buffers are in no state dict
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = rotary
    return model.eval()


def _rope_parameters(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    found: dict[str, Any] = {
        "rope_type": scaling.kind.value,
        "rope_theta": theta,
        "factor": scaling.factor,
    }
    if scaling.kind is RopeScalingKind.LLAMA3:
        found |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return found


@torch.inference_mode()
def transformers_logits(model: Any, ids: list[int]) -> Tensor:
    """[len(ids), V] float32 of one plain pass."""
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits.float()
