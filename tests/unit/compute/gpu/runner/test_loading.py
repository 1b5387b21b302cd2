from pathlib import Path

import msgspec
import pytest
import torch

from headway.compute.gpu.models.build import DecoderBuilder
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import (
    AttentionChoice,
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
)
from headway.core.base.errors import InvalidSetting, ModelFileError
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf


def loaded(path: Path, settings: ExecutorSettings | None = None) -> LoadedModel:
    return load_model(read_card(path), settings or ExecutorSettings(), lambda done, total: None)


def test_float32_is_the_default_on_a_cpu(tmp_path: Path) -> None:
    model = loaded(write_gguf(tmp_path / "m.gguf", TinyLlama()))
    assert model.dtype is torch.float32
    assert model.bytes_per_kv_value == 4
    threads = torch.get_num_threads()
    assert model.description == f"torch cpu float32, sdpa attention, {threads} threads"


def test_settings_may_be_plain_strings_of_a_file(tmp_path: Path) -> None:
    settings = msgspec.convert(
        {"dtype": "bfloat16", "attention": "reference", "threads": 1}, ExecutorSettings
    )
    model = loaded(write_gguf(tmp_path / "m.gguf", TinyLlama()), settings)
    assert model.dtype is torch.bfloat16
    assert model.bytes_per_kv_value == 2
    assert model.attention.name == AttentionChoice.REFERENCE
    assert model.description == "torch cpu bfloat16, reference attention, 1 threads"


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_weight_bytes_count_each_tensor_once(
    is_tied: bool, dtype: DtypeChoice, tmp_path: Path
) -> None:
    tiny = TinyLlama(is_tied=is_tied)
    model = loaded(write_gguf(tmp_path / "m.gguf", tiny), ExecutorSettings(dtype=dtype))
    size = 4 if dtype is DtypeChoice.FLOAT32 else 2
    want = 0
    for name, array in tiny.weights().items():
        is_head = name == ("token_embd.weight" if is_tied else "output.weight")
        want += array.size * (4 if is_head or array.ndim == 1 else size)
    assert model.weight_bytes == want


def test_a_tied_head_shares_the_embeddings_bytes_weights_loading_02(tmp_path: Path) -> None:
    for is_tied in (True, False):
        model = loaded(write_gguf(tmp_path / f"{is_tied}.gguf", TinyLlama(is_tied=is_tied)))
        weights = model.decoder.weights
        shares = weights.head.weight.data_ptr() == weights.embedding.data_ptr()
        assert shares == is_tied


def test_progress_rises_from_nothing_to_all(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama(num_layers=3))
    seen: list[tuple[int, int]] = []
    load_model(read_card(path), ExecutorSettings(), lambda done, total: seen.append((done, total)))
    done = [each for each, _ in seen]
    (total,) = {each for _, each in seen}
    assert done == sorted(done)
    assert done[0] == 0
    assert (
        done[-1]
        == total
        == sum(array.nbytes for array in TinyLlama(num_layers=3).weights().values())
    )


def test_a_bad_file_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama(), without=["blk.1.attn_v.weight"])
    built: list[DecoderBuilder] = []
    monkeypatch.setattr(DecoderBuilder, "build", lambda self, progress: built.append(self))
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_v\.weight is missing"):
        loaded(path)
    assert not built


def test_no_thread_is_too_few(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama())
    with pytest.raises(InvalidSetting, match="--threads: must be at least 1, got 0"):
        loaded(path, ExecutorSettings(threads=0))


def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = write_gguf(tmp_path / "m.gguf", TinyLlama())
    with pytest.raises(InvalidSetting, match="--device: cuda, but torch sees no CUDA device"):
        loaded(path, ExecutorSettings(device=DeviceChoice.CUDA))
