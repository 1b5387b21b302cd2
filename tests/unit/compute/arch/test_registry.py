import msgspec
import pytest

from headway.compute.arch.family import Part
from headway.compute.arch.registry import tensor_specs
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import FileFormat, ModelCard


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
    with pytest.raises(ModelFileError, match="'mamba' is not supported; supported: gemma3, llama"):
        tensor_specs(card(architecture="mamba"))


def test_tensors_of_a_fused_family_are_rows_of_one() -> None:
    specs = {
        spec.part: spec
        for spec in tensor_specs(card(architecture="phi3"))
        if spec.layer == 1 and not spec.is_bias
    }
    qkv = [specs[part] for part in (Part.QUERY, Part.KEY, Part.VALUE)]
    assert {spec.name for spec in qkv} == {"blk.1.attn_qkv.weight"}
    assert [(spec.first_row, spec.shape) for spec in qkv] == [
        (0, (576, 576)),
        (576, (192, 576)),
        (768, (192, 576)),
    ]
    assert {spec.file_shape for spec in qkv} == {(960, 576)}
    assert specs[Part.GATE].name == specs[Part.UP].name == "blk.1.ffn_up.weight"
    assert (specs[Part.UP].first_row, specs[Part.UP].file_shape) == (1536, (3072, 576))
    assert specs[Part.DOWN].file_shape == specs[Part.DOWN].shape == (576, 1536)


def test_a_folder_has_its_own_names_and_no_pairs() -> None:
    folder = msgspec.structs.replace(card(), file_format=FileFormat.SAFETENSORS, is_head_tied=True)
    specs = {spec.name: spec for spec in tensor_specs(folder)}
    assert specs["model.layers.2.self_attn.q_proj.weight"].rotated_heads == 0
    assert specs["model.layers.2.post_attention_layernorm.weight"].part is Part.MLP_NORM
    assert "lm_head.weight" not in specs
    untied = msgspec.structs.replace(folder, is_head_tied=False)
    assert not {spec.name: spec for spec in tensor_specs(untied)}["lm_head.weight"].is_optional


def test_gemmas_norms_are_one_more_than_a_folder_holds() -> None:
    for file_format, added in ((FileFormat.SAFETENSORS, 1.0), (FileFormat.GGUF, 0.0)):
        gemma = msgspec.structs.replace(card(architecture="gemma3"), file_format=file_format)
        norms = [spec for spec in tensor_specs(gemma) if "norm" in spec.part.value]
        assert len(norms) == 6 * 3 + 1
        assert {spec.added for spec in norms} == {added}
        shapes = {spec.part: spec.shape for spec in norms}
        assert shapes[Part.QUERY_NORM] == (64,)
        assert shapes[Part.POST_MLP_NORM] == (576,)


def test_qwen2_must_have_its_three_biases() -> None:
    required = {
        spec.part
        for spec in tensor_specs(card(architecture="qwen2"))
        if spec.is_bias and not spec.is_optional
    }
    assert required == {Part.QUERY, Part.KEY, Part.VALUE}
