import pytest

from headway.compute.arch.family import Part
from headway.compute.arch.registry import tensor_specs
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard


def card(*, architecture: str = "llama") -> ModelCard:
    return ModelCard(
        path="m.gguf",
        name="m",
        architecture=architecture,
        num_layers=3,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rope_dim=64,
        rope_theta=10_000.0,
        vocab_size=100,
        context_length=128,
        norm_eps=1e-5,
    )


def test_shapes_follow_from_the_card() -> None:
    shapes = {spec.name: spec.shape for spec in tensor_specs(card())}
    assert shapes["token_embd.weight"] == (100, 576)
    assert shapes["blk.2.attn_k.weight"] == (192, 576)
    assert shapes["blk.2.attn_q.bias"] == (576,)
    assert shapes["blk.0.ffn_down.weight"] == (576, 1536)


def test_keys_are_permuted_by_their_own_heads() -> None:
    heads = {spec.part: spec.rotated_heads for spec in tensor_specs(card()) if spec.layer == 0}
    assert {part: count for part, count in heads.items() if count} == {Part.QUERY: 9, Part.KEY: 3}


def test_head_factors_and_biases_may_be_missing() -> None:
    optional = {spec.name for spec in tensor_specs(card()) if spec.is_optional and not spec.is_bias}
    assert optional == {"output.weight", "rope_freqs.weight"}
    assert all(spec.is_optional for spec in tensor_specs(card()) if spec.is_bias)


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match="'mamba' is not supported; supported: llama"):
        tensor_specs(card(architecture="mamba"))
