"""Hugging Face folders: what is read, and what is refused by the name of file and tensor."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headway.compute.arch.families import FAMILIES
from headway.compute.arch.registry import tensor_specs
from headway.compute.formats.opening import open_weights
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import FileFormat, RopeScaling, RopeScalingKind
from headway.service.loaders.folder_card import FAMILIES as FOLDER_FAMILIES
from headway.service.loaders.gguf_card import ARCHITECTURES
from headway.service.loaders.model_files import open_model
from headway.service.loaders.sampling_defaults import SamplingDefaults
from tests.unit.service.loaders.folder_samples import (
    HIDDEN,
    ROWS,
    tokenizer,
    weights,
    write_folder,
    write_json,
)

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"
DOWN = "model.layers.1.mlp.down_proj.weight"
Damage = Callable[[Path], object]


def check(folder: Path) -> None:
    """All that is done to a folder before memory is taken."""
    card = open_model(str(folder)).card
    open_weights(card, tensor_specs(card))


def test_a_whole_folder_is_read(tmp_path: Path) -> None:
    model = open_model(str(write_folder(tmp_path / "Tiny-1M")) + "/")
    card = model.card
    assert (card.name, card.architecture, card.file_format) == (
        "Tiny-1M",
        "llama",
        FileFormat.SAFETENSORS,
    )
    assert (card.num_heads, card.num_kv_heads, card.head_dim, card.rope_dim) == (4, 2, 4, 4)
    assert (card.rope_theta, card.rope_scaling, card.is_head_tied) == (1e4, None, True)
    assert model.weight_bytes == 4 * sum(array.size for array in weights().values())
    assert model.weight_bytes < model.file_bytes
    check(tmp_path / "Tiny-1M")


def test_a_snapshot_of_a_hub_s_cache_has_its_repository_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "models--some--Tiny-1M" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    write_folder(folder)
    blob = folder.rename(tmp_path / "blobs")
    folder.mkdir()
    for file in blob.iterdir():
        (folder / file.name).symlink_to(file)
    assert open_model(str(folder)).card.name == "some/Tiny-1M"
    check(folder)


def test_all_families_that_are_read_are_computed() -> None:
    assert set(ARCHITECTURES) <= FAMILIES.keys()
    assert {habits.architecture for habits in FOLDER_FAMILIES.values()} == FAMILIES.keys()


def test_rope_scaling_is_read_in_its_old_and_its_new_place(tmp_path: Path) -> None:
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = write_folder(
        tmp_path, rope_theta=5e5, rope_scaling={"type": "llama3", **llama3}, rope_parameters=None
    )
    first = open_model(str(old)).card
    new = write_folder(
        tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **llama3}
    )
    assert first.rope_scaling == RopeScaling(
        kind=RopeScalingKind.LLAMA3,
        factor=8.0,
        original_context=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    second = open_model(str(new)).card
    assert (second.rope_theta, second.rope_scaling) == (5e5, first.rope_scaling)


LONGROPE = {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 3.5]}


def test_both_sets_of_factors_are_read_and_the_original_context_from_outside(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path, rope_scaling=LONGROPE, original_max_position_embeddings=32)
    card = open_model(str(folder)).card
    scaling = card.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == (RopeScalingKind.LONGROPE, 4.0)
    assert scaling.original_context == 32
    assert scaling.attention_factor == pytest.approx((1 + math.log(4) / math.log(32)) ** 0.5)
    assert (scaling.short_factors, scaling.long_factors) == ((1.0, 1.5), (2.0, 3.5))
    assert card.context_length == 128


def test_a_folder_scaled_from_its_training_s_length_is_as_long_as_it_is_scaled_to(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path, rope_scaling={"type": "yarn", "factor": 2.0})
    card = open_model(str(folder)).card
    assert card.context_length == 256
    assert card.rope_scaling is not None
    assert card.rope_scaling.original_context == 128
    assert card.rope_scaling.attention_factor == pytest.approx(1 + 0.1 * math.log(2))


def test_gemma_s_layers_take_turns_as_its_old_configurations_say(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "sliding_window": 32, "sliding_window_pattern": 2}
    folder = write_folder(
        tmp_path,
        model_type="gemma3_text",
        architectures=["Gemma3ForCausalLM"],
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=64,
        head_dim=4,
        **config,
    )
    card = open_model(str(folder)).card
    assert card.sliding_windows == (32, 0)
    assert (card.rope_theta, card.local_rope_theta) == (1e6, 1e4)
    assert card.rope_scaling == RopeScaling(kind=RopeScalingKind.LINEAR, factor=8.0)
    assert (card.score_scale, card.embedding_scale) == (1 / 8, HIDDEN**0.5)


def test_what_the_makers_advise_is_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert open_model(str(folder)).sampling == SamplingDefaults()
    advice = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}
    write_json(folder / "generation_config.json", advice)
    model = open_model(str(folder))
    assert model.sampling == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)
    assert model.vocabulary.end_ids == (1, 2)
    write_json(folder / "generation_config.json", {"temperature": 0, "top_k": -1, "min_p": None})
    assert open_model(str(folder)).sampling == SamplingDefaults(temperature=0.0, top_k=0)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def cut(name: str, keep: int) -> Damage:
    def damage(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[:keep])

    return damage


def edit(name: str, **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        write_json(folder / name, {**values, **changes})

    return damage


def advised(**values: Any) -> Damage:
    return lambda folder: write_json(folder / "generation_config.json", values)


def reshaped(folder: Path) -> None:
    arrays = load_file(folder / SHARD)
    arrays[DOWN] = np.zeros((HIDDEN, 8), np.float32)
    save_file(arrays, folder / SHARD)


def without_down(folder: Path) -> None:
    arrays = load_file(folder / SHARD)
    del arrays[DOWN]
    save_file(arrays, folder / SHARD)


def without_down_anywhere(folder: Path) -> None:
    without_down(folder)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][DOWN]
    write_json(folder / INDEX, index)


def integers(folder: Path) -> None:
    arrays = dict(load_file(folder / SHARD))
    save_file({**arrays, DOWN: np.zeros(arrays[DOWN].shape, np.int32)}, folder / SHARD)


def with_header(**header: Any) -> Damage:
    """A shard with one header written by hand and eight bytes of data."""

    def damage(folder: Path) -> None:
        raw = json.dumps(header).encode()
        (folder / SHARD).write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))

    return damage


def pickled(folder: Path) -> None:
    for file in (*folder.glob("*.safetensors"), folder / INDEX):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n")


def a_directory_for_a_shard(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()


def no_index_and_a_shard_less(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / SHARD).unlink()


def two_of_one_name(folder: Path) -> None:
    (folder / INDEX).unlink()
    for number, file in enumerate(sorted(folder.glob("*.safetensors"))):
        file.rename(folder / f"part{number}.safetensors")
    save_file({"model.norm.weight": np.zeros(HIDDEN, np.float32)}, folder / "part2.safetensors")


def larger_tokenizer(folder: Path) -> None:
    form = tokenizer()
    form["added_tokens"].append({"id": ROWS, "content": "<more>", "special": True})
    write_json(folder / "tokenizer.json", form)


def words(**model: Any) -> Damage:
    return lambda folder: write_json(folder / "tokenizer.json", {"model": model})


def only_sentence_piece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove(SHARD), f"{SHARD}: is missing ({INDEX} names it)"),
        (remove("config.json"), "a directory without config.json"),
        (remove("tokenizer.json"), "tokenizer.json: is missing"),
        (cut("config.json", 40), "config.json: is damaged"),
        (cut(INDEX, 40), f"{INDEX}: is damaged"),
        (cut(SHARD, 4), f"{SHARD}: is not a safetensors file, or is cut short"),
        (cut(SHARD, 100), f"{SHARD}: is not a safetensors file, or is cut short"),
        (cut(SHARD, -1), "is cut short; the file is damaged"),
        (with_header(**{DOWN: F32}), f"{SHARD}: does not hold tensor model.layers.1."),
        (with_header(**{DOWN: {**F32, "shape": [3]}}), f"{DOWN} has 8 bytes for the shape (3,)"),
        (with_header(**{DOWN: {**F32, "data_offsets": [8, 0]}}), f"{DOWN} has -8 bytes"),
        (with_header(**{DOWN: {**F32, "data_offsets": [8, 16]}}), f"{DOWN} is cut short"),
        (with_header(**{DOWN: {**F32, "dtype": "F4"}}), f"{DOWN} is of type 'F4'"),
        (with_header(**{DOWN: {"dtype": "F32"}}), f"{SHARD}: has a damaged header"),
        (a_directory_for_a_shard, f"{SHARD}: is not a regular file"),
        (no_index_and_a_shard_less, f"{SHARD}: is missing"),
        (two_of_one_name, "holds tensor model.norm.weight, and so does part0.safetensors"),
        (without_down, f"{SHARD}: does not hold tensor {DOWN}, which {INDEX} says it does"),
        (without_down_anywhere, f"tensor {DOWN} is missing; the model is incomplete"),
        (reshaped, f"{SHARD}: tensor {DOWN} has shape (16, 8), but the model needs (16, 32)"),
        (integers, f"{SHARD}: tensor {DOWN} is of type I32, which is not supported"),
        (pickled, "pytorch_model.bin, a pickle, which can run code"),
        (edit(INDEX, weight_map={DOWN: "../x.safetensors"}), "is no file of the folder"),
        (edit(INDEX, weight_map={}), "names no tensor"),
        (edit("config.json", num_hidden_layers=3), "the tensors belong to 2 layers"),
        (edit("config.json", num_hidden_layers=1), "the tensors belong to 2 layers"),
        (edit("config.json", vocab_size=300), "has shape (262, 16), but config.json says"),
        (edit("config.json", hidden_size=24), "has shape (262, 16), but config.json says"),
        (edit("config.json", intermediate_size=31), "but the model needs (31, 16)"),
        (edit("config.json", num_key_value_heads=3), "not a multiple of the 3 KV heads"),
        (edit("config.json", hidden_size="16"), "'hidden_size' is '16', not an integer"),
        (edit("config.json", tie_word_embeddings=False), "tensor lm_head.weight is missing"),
        (edit("config.json", attention_bias=True), "the model holds no tensor"),
        (edit("config.json", model_type="mamba"), "is 'mamba'; supported: llama, mistral, qwen2"),
        (edit("config.json", architectures=["LlamaModel"]), "no model that writes text"),
        (edit("config.json", hidden_act="relu"), "supported: silu"),
        (
            edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
            "says 'gptq'; supported: folders with F32, F16 and BF16",
        ),
        (
            edit("config.json", rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
            "is 'dynamic'; supported: default, linear, llama3, yarn, longrope",
        ),
        (
            edit("config.json", rope_scaling={"rope_type": "longrope", "factor": 4.0}),
            "'rope_scaling.short_factor' is missing, or no list of numbers",
        ),
        (
            edit("config.json", rope_scaling={**LONGROPE, "long_factor": [1.0, 2.0, 3.0]}),
            "'rope_scaling.long_factor' has 3 numbers, but 4 values of each head turn in 2 pairs",
        ),
        (
            edit("config.json", rope_scaling={**LONGROPE, "long_factor": [1.0, 0]}),
            "'rope_scaling.long_factor' holds '0', which is no positive number",
        ),
        (
            edit("config.json", rope_scaling={"type": "yarn", "factor": -2.0}),
            "'rope_scaling.factor' is -2.0; it must be positive and finite",
        ),
        (
            edit("config.json", rope_scaling={"type": "yarn", "factor": 2.0, "beta_fast": 0.5}),
            "'rope_scaling.beta_fast' is 0.5, below the slow one of 1.0",
        ),
        (larger_tokenizer, "'<more>' the id 262, but the model's embedding has 262 rows"),
        (words(type="WordPiece", vocab={"a": 0}), "'WordPiece'; supported: BPE, Unigram"),
        (words(type="Unigram", vocab=[["a", 0]], unk_id=1), "has the unk_id 1, but 1 words"),
        (words(type="Unigram", vocab=[["a"]]), "tokenizer.json: has a damaged model"),
        (words(type="Unigram", vocab=[["a", 0]]), "does not write spaces as '\u2581'"),
        (only_sentence_piece, "is missing beside tokenizer.model; where transformers and senten"),
        (edit("tokenizer_config.json", eos_token="</x>"), "names the token '</x>'"),
        (advised(temperature=2.5), "'temperature' is 2.5; it must be from 0 to 2"),
        (advised(top_k="all"), "'top_k' is 'all', not a number"),
        (advised(repetition_penalty=True), "'repetition_penalty' is 'True', not a number"),
    ],
)
def test_a_damaged_folder_is_refused_by_file_and_tensor_weights_loading_03(
    damage: Damage, said: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m")
    check(folder)
    damage(folder)
    with pytest.raises(ModelFileError) as caught:
        check(folder)
    assert said in caught.value.message
    assert caught.value.message.startswith(str(folder))
    assert "\n" not in caught.value.message


def test_the_index_says_which_of_two_tensors_is_meant_weights_loading_03(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    arrays = load_file(folder / "model-00001-of-00002.safetensors")
    meant = np.full((HIDDEN, 32), 2.0, np.float32)
    second = load_file(folder / SHARD)
    save_file({**second, DOWN: meant}, folder / SHARD)
    other = {**arrays, DOWN: np.full((HIDDEN, 32), 3.0, np.float32)}
    save_file(other, folder / "model-00001-of-00002.safetensors")
    card = open_model(str(folder)).card
    specs = {spec.name: spec for spec in tensor_specs(card)}
    file = open_weights(card, specs.values())
    assert (file.read(specs[DOWN]) == 2.0).all()


def test_an_empty_directory_and_one_that_is_called_a_file_are_refused_weights_loading_03(
    tmp_path: Path,
) -> None:
    for name in ("empty", "x.safetensors"):
        (tmp_path / name).mkdir()
        with pytest.raises(ModelFileError, match=r"a directory without config\.json"):
            open_model(str(tmp_path / name))
    (tmp_path / "empty" / "m.gguf").touch()
    with pytest.raises(ModelFileError, match=r"one file, such as m\.gguf"):
        open_model(str(tmp_path / "empty"))
