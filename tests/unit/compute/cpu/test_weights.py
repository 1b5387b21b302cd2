from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headway.compute.arch.rope import inverse_frequencies
from headway.compute.cpu.pack import COLUMNS, Format
from headway.compute.cpu.rope import rotation_tables
from headway.compute.cpu.settings import Quantization
from headway.compute.cpu.weights import (
    ADDRESS,
    BIAS,
    DOWN,
    GATE_UP,
    INPUTS,
    KIND,
    OUTPUT,
    PANELS,
    QKV,
    WeightReader,
    Weights,
)
from headway.compute.formats.blocks import expand
from headway.core.base.errors import InvalidSetting, ModelFileError
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

TINY = TinyLlama(head_dim=32, num_layers=3)


def read(path: Path, num_positions: int = 40) -> Weights:
    return WeightReader(read_card(path)).read(num_positions, lambda done, total: None)


def bfloat16_rows(values: np.ndarray) -> np.ndarray:
    """As a file holds them."""
    found: np.ndarray = quantize(values, GGMLQuantizationType.BF16)
    return found


def columns(weights: Weights, layer: int, which: int) -> np.ndarray:
    """The float32 matrix [outputs, inputs] behind one entry of `linears`, and then the head."""
    packed = weights.packed[layer * 4 + which]
    described = np.concatenate((weights.linears.reshape(-1, 5), weights.head[None]))
    assert packed.address == described[layer * 4 + which, ADDRESS]
    assert packed.format is Format.F32
    panels = packed.data.view(np.float32).reshape(packed.num_panels, packed.num_inputs, COLUMNS)
    found: np.ndarray = panels.transpose(0, 2, 1).reshape(-1, packed.num_inputs)
    assert not found[packed.num_outputs :].any()
    return found[: packed.num_outputs]


def test_matrices_that_share_their_input_are_one_in_order(tmp_path: Path) -> None:
    weights = read(write_gguf(tmp_path / "m.gguf", TINY))
    held = TINY.weights()
    for layer in range(3):
        for which, stems in (
            (QKV, ("attn_q", "attn_k", "attn_v")),
            (OUTPUT, ("attn_output",)),
            (GATE_UP, ("ffn_gate", "ffn_up")),
            (DOWN, ("ffn_down",)),
        ):
            want = np.concatenate([held[f"blk.{layer}.{stem}.weight"] for stem in stems])
            assert np.array_equal(columns(weights, layer, which), want), (layer, stems)


def test_the_descriptions_are_those_of_the_packed_matrices(tmp_path: Path) -> None:
    weights = read(write_gguf(tmp_path / "m.gguf", TINY, quantized="Q4_1"))
    assert weights.linears.shape == (3, 4, 5)
    assert weights.linears.dtype == np.int64
    assert (weights.linears[:, :, KIND] == Format.Q4_1).all()
    assert weights.linears[0, :, INPUTS].tolist() == [64, 128, 64, 96]
    assert weights.linears[0, :, PANELS].tolist() == [6, 2, 4, 2]
    assert weights.head[[KIND, INPUTS, PANELS]].tolist() == [Format.Q4_1, 64, 6]
    assert not (weights.linears[:, :, ADDRESS] % 64).any()


def test_norms_stand_layer_after_layer_and_the_output_s_last(tmp_path: Path) -> None:
    weights = read(write_gguf(tmp_path / "m.gguf", TINY))
    held = TINY.weights()
    names = [f"blk.{layer}.{part}_norm" for layer in range(3) for part in ("attn", "ffn")]
    want = [held[f"{name}.weight"] for name in [*names, "output_norm"]]
    assert np.array_equal(weights.norms, np.stack(want))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_head_is_the_embedding_only_where_they_are_tied(is_tied: bool, tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, is_tied=is_tied)
    weights = read(write_gguf(tmp_path / "m.gguf", tiny))
    held = tiny.weights()
    name = "token_embd.weight" if is_tied else "output.weight"
    assert np.array_equal(columns(weights, tiny.num_layers, 0), held[name])
    ids = np.array([0, 256, 3, 3])
    assert np.array_equal(weights.embedding.of(ids), held["token_embd.weight"][ids])


def test_types_that_differ_become_float32_and_only_there(tmp_path: Path) -> None:
    formats = {"blk.1.attn_v.weight": "F16", "blk.2.ffn_down.weight": "BF16"}
    weights = read(write_gguf(tmp_path / "m.gguf", TINY, quantized="Q8_0", formats=formats))
    want = np.full((3, 4), Format.Q8_0)
    want[1, QKV], want[2, DOWN] = Format.F32, Format.BF16
    assert np.array_equal(weights.linears[:, :, KIND], want)
    values = TINY.weights()["blk.1.attn_v.weight"].astype(np.float16)
    assert np.array_equal(columns(weights, 1, QKV)[-64:], values.astype(np.float32))


def test_rotation_tables_hold_the_positions_asked_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    weights = read(path, num_positions=17)
    cosines, sines = rotation_tables(inverse_frequencies(read_card(path), None), 17)
    assert weights.cosines.shape == (1, 17, 16)
    assert np.array_equal(weights.cosines[0], cosines)
    assert np.array_equal(weights.sines[0], sines)


@pytest.mark.parametrize("is_tied", [True, False])
def test_bytes_are_those_of_all_arrays_that_are_held(is_tied: bool, tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, is_tied=is_tied)
    weights = read(write_gguf(tmp_path / "m.gguf", tiny))
    arrays = [weights.norms, weights.cosines, weights.sines]
    arrays += [] if is_tied else [tiny.weights()["token_embd.weight"]]
    want = sum(each.data.nbytes for each in weights.packed) + sum(a.nbytes for a in arrays)
    assert weights.num_bytes == want


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("quantized", ["F32", "Q8_0", "Q4_1"])
def test_the_file_is_not_mapped_once_it_is_read(
    quantized: str, is_tied: bool, tmp_path: Path
) -> None:
    tiny = TinyLlama(head_dim=32, is_tied=is_tied)
    path = write_gguf(tmp_path / "m.gguf", tiny, quantized=quantized)
    reader = WeightReader(read_card(path))
    assert str(path) in Path("/proc/self/maps").read_text()
    weights = reader.read(8, lambda done, total: None)
    del reader
    assert str(path) not in Path("/proc/self/maps").read_text()
    path.unlink()
    assert weights.embedding.of(np.array([5, 0])).shape == (2, tiny.hidden_size)


@pytest.mark.parametrize("is_tied", [True, False])
def test_progress_rises_from_nothing_to_all(is_tied: bool, tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, num_layers=3, is_tied=is_tied)
    path = write_gguf(tmp_path / "m.gguf", tiny)
    seen: list[tuple[int, int]] = []
    WeightReader(read_card(path)).read(8, lambda done, total: seen.append((done, total)))
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == seen[0][1] == sum(array.nbytes for array in tiny.weights().values())
    assert {total for _, total in seen} == {done[-1]}


def test_biases_stand_beside_their_matrices_with_zeros_for_those_without(tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, has_bias=True)
    held = tiny.weights()
    path = write_gguf(tmp_path / "m.gguf", tiny, without=["blk.1.attn_k.bias"])
    weights = read(path)
    assert not weights.linears[:, [GATE_UP, DOWN], BIAS].any()
    assert weights.head[BIAS] == 0
    by_address = {each.ctypes.data: each for each in weights.vectors}
    got = by_address[weights.linears[1, QKV, BIAS]]
    q, v = held["blk.1.attn_q.bias"], held["blk.1.attn_v.bias"]
    assert np.array_equal(got, np.concatenate((q, np.zeros(64), v, np.zeros(32))))
    got = by_address[weights.linears[0, OUTPUT, BIAS]]
    assert np.array_equal(got[:64], held["blk.0.attn_output.bias"])
    assert got.shape == (2 * COLUMNS,)


def test_a_llama_has_nothing_beside_its_matrices(tmp_path: Path) -> None:
    weights = read(write_gguf(tmp_path / "m.gguf", TINY))
    assert not weights.layers.any()
    assert not weights.linears[:, :, BIAS].any()
    assert list(weights.vectors) == []


@pytest.mark.parametrize("size", [40, 80])
def test_inputs_that_are_not_whole_groups_name_their_tensors(size: int, tmp_path: Path) -> None:
    tiny = TinyLlama(head_dim=32, intermediate_size=size)
    path = write_gguf(tmp_path / "m.gguf", tiny)
    weights_or_error: Weights | str
    try:
        weights_or_error = read(path)
    except ModelFileError as error:
        weights_or_error = error.message
    if isinstance(weights_or_error, str):
        assert "blk.0.ffn_down.weight" in weights_or_error
    else:
        assert weights_or_error.linears[0, DOWN, INPUTS] == size


@pytest.mark.parametrize(
    ("asked", "layers", "head", "said"),
    [
        ("none", Format.BF16, Format.BF16, "BF16"),
        ("auto", Format.Q8_0, Format.Q8_0, "Q8_0"),
        ("int8", Format.Q8_0, Format.Q8_0, "Q8_0"),
        ("int4", Format.Q4_1, Format.Q8_0, "Q4_1, head Q8_0"),
    ],
)
@pytest.mark.parametrize("is_tied", [True, False])
def test_float_weights_become_what_was_asked_for(
    asked: str, layers: Format, head: Format, said: str, is_tied: bool, tmp_path: Path
) -> None:
    tiny = TinyLlama(head_dim=32, is_tied=is_tied)
    path = write_gguf(tmp_path / "m.gguf", tiny, quantized="BF16")
    weights = WeightReader(read_card(path), Quantization(asked)).read(8, lambda done, total: None)
    assert (weights.linears[:, :, KIND] == layers).all()
    assert weights.head[KIND] == head
    assert weights.type_names == said
    ids = np.array([1, 256])
    want = expand("BF16", bfloat16_rows(tiny.weights()["token_embd.weight"]))
    assert np.array_equal(weights.embedding.of(ids), want[ids]), "its rows are read as they are"


def test_parts_of_several_types_that_become_one_are_joined(tmp_path: Path) -> None:
    formats = {"blk.1.attn_v.weight": "F16", "blk.2.ffn_down.weight": "BF16"}
    path = write_gguf(tmp_path / "m.gguf", TINY, quantized="Q8_0", formats=formats)
    weights = WeightReader(read_card(path), Quantization.AUTO).read(8, lambda done, total: None)
    assert (weights.linears[:, :, KIND] == Format.Q8_0).all()


def test_startup_config_01_a_file_of_4_bits_refuses_8_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    formats = {"blk.1.ffn_down.weight": "Q4_0"}
    path = write_gguf(tmp_path / "m.gguf", TINY, formats=formats)
    with pytest.raises(InvalidSetting, match=r"--quantization: int8 .* blk.1.ffn_down.weight"):
        WeightReader(read_card(path), Quantization.INT8)
