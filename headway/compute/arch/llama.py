"""The Llama family: pre-norm decoder, rotary positions, grouped heads, gated MLP.

Names are GGUF's. A file without `output.weight` ties the head to the embedding.
"""

from headway.compute.arch.family import Part, TensorSpec
from headway.core.base.model_card import ModelCard

ARCHITECTURE = "llama"


def tensor_specs(card: ModelCard) -> tuple[TensorSpec, ...]:
    """Every tensor a file of this family may hold, with its shape; layers in order."""
    specs = [
        TensorSpec(
            name="token_embd.weight",
            part=Part.EMBEDDING,
            shape=(card.vocab_size, card.hidden_size),
        ),
        TensorSpec(name="output_norm.weight", part=Part.OUTPUT_NORM, shape=(card.hidden_size,)),
        TensorSpec(
            name="output.weight",
            part=Part.HEAD,
            shape=(card.vocab_size, card.hidden_size),
            is_optional=True,
        ),
        TensorSpec(
            name="rope_freqs.weight",
            part=Part.ROPE_FACTORS,
            shape=(card.rope_dim // 2,),
            is_optional=True,
        ),
    ]
    for layer in range(card.num_layers):
        specs += _layer_specs(card, layer)
    return tuple(specs)


def _layer_specs(card: ModelCard, layer: int) -> list[TensorSpec]:
    hidden, inner = card.hidden_size, card.intermediate_size
    q_size = card.num_heads * card.head_dim
    kv_size = card.num_kv_heads * card.head_dim
    specs = [
        TensorSpec(name=f"blk.{layer}.{stem}.weight", part=part, shape=(hidden,), layer=layer)
        for stem, part in (("attn_norm", Part.ATTENTION_NORM), ("ffn_norm", Part.MLP_NORM))
    ]
    for stem, part, shape, rotated_heads in (
        ("attn_q", Part.QUERY, (q_size, hidden), card.num_heads),
        ("attn_k", Part.KEY, (kv_size, hidden), card.num_kv_heads),
        ("attn_v", Part.VALUE, (kv_size, hidden), 0),
        ("attn_output", Part.ATTENTION_OUTPUT, (hidden, q_size), 0),
        ("ffn_gate", Part.GATE, (inner, hidden), 0),
        ("ffn_up", Part.UP, (inner, hidden), 0),
        ("ffn_down", Part.DOWN, (hidden, inner), 0),
    ):
        for suffix, is_bias in (("weight", False), ("bias", True)):
            specs.append(
                TensorSpec(
                    name=f"blk.{layer}.{stem}.{suffix}",
                    part=part,
                    shape=shape[:1] if is_bias else shape,
                    layer=layer,
                    is_bias=is_bias,
                    is_optional=is_bias,
                    rotated_heads=rotated_heads,
                )
            )
    return specs
