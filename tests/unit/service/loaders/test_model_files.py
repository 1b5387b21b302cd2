"""What a model file says, and what is refused when it contradicts itself."""

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import RopeScaling, RopeScalingKind
from headway.service.loaders.model_files import ModelFile, SamplingDefaults, open_model
from tests.unit.service.loaders.samples import (
    HIDDEN,
    Change,
    add_byte_level,
    add_shape,
    add_tensors,
    remove,
    replace,
    tiny,
    tiny_model,
    write,
)


def test_the_built_in_model_s_card_is_read(smollm2: ModelFile) -> None:
    card = smollm2.card
    assert (card.num_layers, card.hidden_size, card.intermediate_size) == (30, 576, 1536)
    assert (card.num_heads, card.num_kv_heads, card.head_dim, card.rope_dim) == (9, 3, 64, 64)
    assert (card.rope_theta, card.vocab_size, card.context_length) == (100000.0, 49152, 8192)
    assert card.norm_eps == pytest.approx(1e-5)
    assert card.rope_scaling is None
    vocabulary = smollm2.vocabulary
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (1, 2, 2)
    assert vocabulary.add_bos is False
    assert smollm2.chat_template is not None


def test_what_a_file_leaves_out_takes_its_usual_value(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, remove("llama.attention.head_count_kv"))
    assert model.card.num_kv_heads == model.card.num_heads == 4
    assert model.card.rope_theta == 10000.0
    assert model.card.rope_dim == model.card.head_dim == 4
    assert model.card.name == "tiny"
    assert model.chat_template is None
    assert model.vocabulary.eos_id is None


def rope(kind: str, factor: float = 4.0) -> Change:
    def change(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(64)

    return change


def rope_factors(writer: GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.ones(2, np.float32))


def long_factors(writer: GGUFWriter) -> None:
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        writer.add_tensor(name, np.ones(2, np.float32))


def advice(writer: GGUFWriter) -> None:
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_uint32("general.sampling.top_k", 40)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)


def test_what_the_makers_advise_is_read_from_a_file_too(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, advice)
    want = SamplingDefaults(temperature=0.5, top_k=40, repetition_penalty=1.25)
    assert model.sampling == want


def test_rope_scaling_is_read(tmp_path: Path) -> None:
    def scaling(*changes: Change) -> RopeScaling | None:
        return tiny_model(tmp_path, *changes).card.rope_scaling

    assert scaling(rope("none")) is None
    assert scaling(rope("linear")) == RopeScaling(kind=RopeScalingKind.LINEAR, factor=4.0)
    yarn = scaling(rope("yarn"))
    assert yarn is not None
    assert (yarn.kind, yarn.factor, yarn.original_context) == (RopeScalingKind.YARN, 4.0, 64)
    assert yarn.attention_factor == pytest.approx(1 + 0.1 * math.log(4))
    assert scaling(rope_factors) == RopeScaling(kind=RopeScalingKind.LLAMA3)
    assert scaling(long_factors, added("llama.rope.scaling.original_context_length", 32)) == (
        RopeScaling(kind=RopeScalingKind.LONGROPE, original_context=32)
    )


def test_a_file_scaled_from_its_training_s_length_is_as_long_as_it_is_scaled_to(
    tmp_path: Path,
) -> None:
    stretched = tiny_model(tmp_path, rope("yarn")).card
    assert stretched.context_length == 4 * 64
    assert tiny_model(tmp_path, rope("yarn", 1.5)).card.context_length == 128


def several(*changes: Change) -> Change:
    def change(writer: GGUFWriter) -> None:
        for one in changes:
            one(writer)

    return change


def yarn_with(name: str, value: float) -> Change:
    return lambda writer: writer.add_float32(f"llama.rope.scaling.yarn_{name}", value)


def added(key: str, value: int) -> Change:
    return lambda writer: writer.add_uint32(key, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replace("llama.attention.head_count", 3), "not a multiple of the 2 KV heads"),
        (replace("llama.attention.head_count", 6), "does not divide the width 16"),
        (replace("llama.attention.head_count", 0), "head_count' is 0"),
        (replace("llama.attention.head_count_kv", 3), "not a multiple of the 3 KV heads"),
        (replace("llama.embedding_length", 0), "embedding_length' is 0"),
        (replace("llama.embedding_length", 32), "expected rows of 32 values"),
        (replace("llama.block_count", 0), "block_count' is 0"),
        (replace("llama.block_count", 3), "block_count' is 3, but the tensors belong to 2"),
        (replace("llama.block_count", 4_000_000_000), "the tensors belong to 2 layers"),
        (replace("llama.context_length", 0), "context_length' is 0"),
        (replace("llama.feed_forward_length", 0), "feed_forward_length' is 0"),
        (remove("llama.feed_forward_length"), "feed_forward_length' is missing"),
        (replace("llama.attention.layer_norm_rms_epsilon", float("nan")), "epsilon' is nan"),
        (replace("llama.attention.layer_norm_rms_epsilon", float("inf")), "epsilon' is inf"),
        (replace("llama.attention.layer_norm_rms_epsilon", 0.0), "epsilon' is 0"),
        (replace("llama.attention.layer_norm_rms_epsilon", 2.0), "must be less than 1"),
        (added("llama.rope.dimension_count", 6), "at most the head size 4"),
        (added("llama.rope.dimension_count", 3), "must be even"),
        (added("llama.attention.value_length", 8), "differs from the key length 4"),
        (added("llama.expert_count", 8), "mixtures of experts"),
        (added("split.count", 2), "split over several files"),
        (added("tokenizer.ggml.eos_token_id", 5000), "outside the vocabulary of 262 tokens"),
        (rope("dynamic"), "'dynamic'; supported: none, linear, yarn, longrope"),
        (rope("longrope"), "tensor 'rope_factors_long.weight' is missing"),
        (several(long_factors, rope_factors), "both scale"),
        (several(rope("yarn"), yarn_with("ext_factor", 0.5)), "yarn_ext_factor' is 0.5: not"),
        (several(rope("yarn"), yarn_with("beta_fast", 0.5)), "below the slow one of 1.0"),
        (rope("linear", 0.0), "scaling.factor' is 0"),
        (several(rope("linear"), rope_factors), "not supported"),
        (remove("tokenizer.ggml.tokens"), "no tokenizer in it"),
        (remove("tokenizer.ggml.model"), "no tokenizer in it"),
        (replace("tokenizer.ggml.token_type", [1, 1]), "has 2 elements for 262 tokens"),
        (replace("tokenizer.ggml.token_type", [9] * 262), "holds 9"),
        (replace("tokenizer.ggml.tokens", ["a"]), "262 elements for 1 tokens"),
        (
            several(
                replace("tokenizer.ggml.tokens", ["a"]), replace("tokenizer.ggml.token_type", [1])
            ),
            "has 1 tokens, but the tensor 'token_embd.weight' has 262 rows",
        ),
    ],
)
def test_a_contradiction_is_refused_and_named(tmp_path: Path, change: Change, said: str) -> None:
    path = tiny(tmp_path / "m.gguf", change)
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    assert said in caught.value.message
    assert caught.value.message.startswith(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        ("llama.block_count", lambda w: w.add_string("llama.block_count", "2"), "an integer"),
        ("llama.block_count", lambda w: w.add_float32("llama.block_count", 2.0), "an integer"),
        ("llama.block_count", lambda w: w.add_bool("llama.block_count", True), "an integer"),
        ("tokenizer.ggml.tokens", lambda w: w.add_string("tokenizer.ggml.tokens", "a"), "array"),
        (
            "tokenizer.ggml.merges",
            lambda w: w.add_array("tokenizer.ggml.merges", [1, 2]),
            "an array of strings",
        ),
        (
            "tokenizer.ggml.token_type",
            lambda w: w.add_array("tokenizer.ggml.token_type", ["a"]),
            "an array of integers",
        ),
        ("x", lambda w: w.add_array("tokenizer.ggml.scores", [1, 2]), "floating-point"),
        ("x", lambda w: w.add_array("tokenizer.ggml.scores", [float("nan")]), "NaN"),
        ("x", lambda w: w.add_uint32("tokenizer.ggml.add_bos_token", 1), "a boolean"),
        ("x", lambda w: w.add_uint32("tokenizer.chat_template", 1), "a string"),
        ("x", lambda w: w.add_string("llama.rope.freq_base", "x"), "a number"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(
    tmp_path: Path, key: str, change: Change, said: str
) -> None:
    def swap(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        change(writer)

    with pytest.raises(ModelFileError, match=said):
        tiny_model(tmp_path, swap)


def test_another_architecture_is_refused_with_those_supported(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="'mamba'; supported architectures: llama"):
        open_model(write(tmp_path / "m.gguf", architecture="mamba"))
    with pytest.raises(ModelFileError, match="is missing; supported architectures: llama"):
        open_model(write(tmp_path / "m.gguf", remove("general.architecture")))


def test_equal_numbers_a_layer_are_one_number_and_others_are_refused(tmp_path: Path) -> None:
    def heads(counts: list[int]) -> Change:
        def change(writer: GGUFWriter) -> None:
            del writer.kv_data[0]["llama.attention.head_count_kv"]
            writer.add_array("llama.attention.head_count_kv", counts)

        return change

    assert tiny_model(tmp_path, heads([1, 1])).card.num_kv_heads == 1
    with pytest.raises(ModelFileError, match="differs from layer to layer"):
        tiny_model(tmp_path, heads([1, 2]))


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    def only_norm(writer: GGUFWriter) -> None:
        add_byte_level(writer)
        writer.add_tensor("output_norm.weight", np.zeros(HIDDEN, np.float32))

    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing"):
        open_model(write(tmp_path / "m.gguf", add_shape, only_norm))


def test_a_layer_that_is_missing_is_noticed(tmp_path: Path) -> None:
    def one_layer(writer: GGUFWriter) -> None:
        add_tensors(writer, add_byte_level(writer), layers=1)

    with pytest.raises(ModelFileError, match="the tensors belong to 1 layers"):
        open_model(write(tmp_path / "m.gguf", add_shape, one_layer))
