"""A model card out of a GGUF file's metadata, read by the tests themselves."""

from pathlib import Path
from typing import Any

from gguf import GGUFReader

from headway.core.base.model_card import ModelCard, RopeScaling


def read_card(path: Path, rope_scaling: RopeScaling | None = None) -> ModelCard:
    """The card of a Llama file; rope scaling is the caller's to say."""
    fields = GGUFReader(str(path)).fields

    def value(key: str, default: Any = None) -> Any:
        found = fields.get(f"llama.{key}")
        return default if found is None else found.contents()

    hidden, num_heads = value("embedding_length"), value("attention.head_count")
    window = value("attention.sliding_window", 0)
    head_dim = value("attention.key_length", hidden // num_heads)
    return ModelCard(
        path=str(path),
        name=path.stem,
        architecture="llama",
        num_layers=value("block_count"),
        hidden_size=hidden,
        intermediate_size=value("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=value("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rope_dim=value("rope.dimension_count", head_dim),
        rope_theta=value("rope.freq_base", 10_000.0),
        rope_scaling=rope_scaling,
        vocab_size=value("vocab_size"),
        context_length=value("context_length"),
        norm_eps=value("attention.layer_norm_rms_epsilon"),
        sliding_windows=(window,) * value("block_count") if window else (),
    )
