"""Small random models of each family, saved as folders by transformers itself."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 259
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
ORIGINAL_CONTEXT = 40  # tokens; what is computed with these is longer
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}
# Of 12 pairs, each with a divisor of its own.
SHORT_FACTORS = [1.0 + 0.05 * pair for pair in range(12)]
LONG_FACTORS = [1.0 + 0.4 * pair for pair in range(12)]


def _llama(**more: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=16, **more))


def _mistral(window: int | None) -> Any:
    return MistralForCausalLM(MistralConfig(**SHAPE, head_dim=24, sliding_window=window))


def _qwen2(**more: Any) -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, **more))


def _qwen3(**more: Any) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32, **more))


def _gemma3(scaling: dict[str, Any]) -> Any:
    shape = {**SHAPE, "num_hidden_layers": 7}  # the sixth sees everything
    config = Gemma3TextConfig(
        **shape,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=20,
        rope_parameters={"full_attention": scaling, "sliding_attention": LOCAL},
    )
    return Gemma3ForCausalLM(config)


def _phi3(factor: float, window: int | None) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": factor}
    return Phi3ForCausalLM(Phi3Config(**SHAPE, rope_parameters=rope, sliding_window=window))


def long_phi3(original_context: int = ORIGINAL_CONTEXT) -> Any:
    """A Phi-3 with both sets of factors, whose heads of 32 values turn in part."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": SHORT_FACTORS,
        "long_factor": LONG_FACTORS,
    }
    config = Phi3Config(
        **{**SHAPE, "hidden_size": 128},
        rope_parameters=rope,
        sliding_window=None,
        original_max_position_embeddings=original_context,
    )
    return Phi3ForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama, tied": lambda: _llama(tie_word_embeddings=True),
    "llama, biases": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama, linear scaling": lambda: _llama(rope_parameters=LINEAR),
    "llama, llama3 scaling": lambda: _llama(rope_parameters=LLAMA3),
    "mistral, window": lambda: _mistral(30),
    "mistral, no window": lambda: _mistral(None),
    "qwen2": _qwen2,
    "qwen2, tied": lambda: _qwen2(tie_word_embeddings=True),
    "qwen2, windows from a layer on": lambda: _qwen2(
        use_sliding_window=True, sliding_window=17, max_window_layers=1
    ),
    "qwen3": lambda: _qwen3(tie_word_embeddings=True),
    "qwen3, biases": lambda: _qwen3(attention_bias=True),
    "gemma3": lambda: _gemma3({"rope_type": "default", "rope_theta": 10_000.0}),
    "gemma3, linear scaling": lambda: _gemma3(LINEAR),
    "phi3": lambda: _phi3(1.0, None),
    "phi3, partly rotated": lambda: _phi3(0.75, None),
    "phi3, window": lambda: _phi3(0.5, 23),
    "llama, yarn": lambda: _llama(rope_parameters=YARN),
    "qwen2, yarn": lambda: _qwen2(rope_parameters=YARN),
    "qwen2, yarn as its parameters say": lambda: _qwen2(
        rope_parameters={
            **YARN,
            "attention_factor": 0.8,
            "beta_fast": 4,
            "beta_slow": 0.5,
            "truncate": False,
        }
    ),
    "qwen3, yarn": lambda: _qwen3(
        tie_word_embeddings=True, rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}
    ),
    "phi3, longrope": long_phi3,
    "phi3, longrope within the original context": lambda: long_phi3(128),
}


# Those of them that the CPU executor is compared with too; its heads are multiples of 32.
ON_CPU = ("qwen3, biases", "gemma3, linear scaling", "qwen3, yarn", "phi3, longrope")


def make(name: str, seed: int = 0) -> Any:
    """A float32 model whose weights, norms and biases included, are all random.

    Scaled so that the logits' spread is a few units: a flat distribution hides errors.
    """
    model = MODELS[name]().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in key:
                weight.copy_(weight + 0.2 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.3 * noise)
            else:
                is_outer = "embed_tokens" in key or "lm_head" in key
                weight.copy_(noise * (3.0 if is_outer else 1.0) / weight.shape[1] ** 0.5)
    return model


def byte_tokenizer() -> Tokenizer:
    """Three control tokens, and every byte as a word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index + 3 for index, text in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE({**vocab, "<pad>": 0, "<s>": 1, "</s>": 2}, []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    return tokenizer


def save(
    model: Any, folder: Path, *, shard_size: str = "40KB", dtype: torch.dtype | None = None
) -> str:
    """Write the model and a byte tokenizer as save_pretrained does; gives the path."""
    saved = model if dtype is None else model.to(dtype)
    saved.save_pretrained(folder, max_shard_size=shard_size)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    return str(folder)


@torch.inference_mode()
def logits_of(model: Any, ids: Sequence[int]) -> Tensor:
    """[len(ids), V] of all positions at once, by transformers."""
    out: Tensor = model(torch.tensor([list(ids)])).logits[0].float()
    return out
