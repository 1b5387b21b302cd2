import logging
from pathlib import Path

import numpy as np
import pytest

from headway.compute.arch.registry import tensor_specs
from headway.compute.formats.gguf import GgufTensors
from headway.core.base.errors import ModelFileError
from tests.parity.cards import read_card
from tests.parity.tiny_llama import Floats, TinyLlama, write_gguf

TINY = TinyLlama()


def opened(path: Path) -> GgufTensors:
    card = read_card(path)
    return GgufTensors(str(path), tensor_specs(card), card.rope_dim)


def test_tensors_come_back_in_the_order_they_are_computed_with(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    file = opened(path)
    weights = TINY.weights()
    read = {spec.name: file.read(spec) for spec in tensor_specs(read_card(path)) if spec in file}
    assert read.keys() == weights.keys()
    for name, values in read.items():
        assert np.array_equal(values, weights[name]), name


def test_an_unknown_tensor_gives_one_warning_weights_loading_02(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra: dict[str, Floats] = {
        "vision.a": np.zeros(4, np.float32),
        "vision.b": np.zeros(4, np.float32),
    }
    path = write_gguf(tmp_path / "m.gguf", TINY, replaced=extra)
    with caplog.at_level(logging.WARNING):
        opened(path)
    (record,) = caplog.records
    assert "vision.a, vision.b" in record.getMessage()


def test_a_known_optional_tensor_gives_no_warning_weights_loading_02(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factors = np.ones(TINY.head_dim // 2, np.float32)
    path = write_gguf(tmp_path / "m.gguf", TINY, replaced={"rope_freqs.weight": factors})
    with caplog.at_level(logging.WARNING):
        opened(path)
    assert not caplog.records


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named_weights_loading_02(name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, without=[name])
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tensor {name} is missing"):
        opened(path)


def test_a_wrong_shape_is_named_weights_loading_02(tmp_path: Path) -> None:
    wrong = {"blk.0.attn_k.weight": np.zeros((16, 64), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", TINY, replaced=wrong)
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_k\.weight has shape \(16, 64\)"):
        opened(path)


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, quantized="MXFP4")
    with pytest.raises(
        ModelFileError,
        match=r"of type MXFP4, which is not supported; use a file of F32, .*, Q5_1, .*, Q6_K",
    ):
        opened(path)


def test_a_file_cut_short_names_the_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    card = read_card(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match=r"m\.gguf: tensor blk\.1\.\S+ is cut short"):
        GgufTensors(str(path), tensor_specs(card), card.rope_dim)


@pytest.mark.parametrize("size", [0, 3, 40, 500])
def test_a_file_cut_within_its_header_is_refused(size: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    card = read_card(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"m\.gguf: "):
        GgufTensors(str(path), tensor_specs(card), card.rope_dim)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(ModelFileError, match="cannot be opened"):
            GgufTensors(str(path), (), 16)
