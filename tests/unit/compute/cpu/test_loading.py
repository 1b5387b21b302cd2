import os
from pathlib import Path

import msgspec
import pytest

from headway.compute.cpu.features import detect
from headway.compute.cpu.loading import LoadedModel, load_model
from headway.compute.cpu.settings import CpuSettings, Isa
from headway.core.base.errors import ExecutorUnsuitable, InvalidSetting
from tests.parity.cards import read_card
from tests.parity.tiny_llama import TinyLlama, write_gguf

TINY = TinyLlama(head_dim=32, context_length=96)


def load(path: Path, settings: CpuSettings | None = None, *, isa: Isa | None = None) -> LoadedModel:
    return load_model(read_card(path), settings or CpuSettings(), lambda done, total: None, isa=isa)


def test_a_model_says_what_computes_it(tmp_path: Path) -> None:
    model = load(write_gguf(tmp_path / "m.gguf", TINY), CpuSettings(threads=3))
    assert model.isa is detect()
    assert model.description == f"numba cpu {detect()}, Q8_0 weights, bfloat16 KV, 3 threads"
    assert model.dtype_name == "Q8_0"
    assert model.bytes_per_kv_value == 2
    assert model.weight_bytes == model.weights.num_bytes


def test_eight_bits_of_kv_are_said_and_counted_with_their_scales(tmp_path: Path) -> None:
    model = load(write_gguf(tmp_path / "m.gguf", TINY), CpuSettings(kv_cache_dtype="int8"))
    assert ", int8 KV, " in model.description
    assert model.card.kv_bytes_per_token(model.bytes_per_kv_value) == (
        2 * model.card.num_layers * model.card.num_kv_heads * (32 + 4)
    )


def test_a_type_of_kv_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--kv-cache-dtype: must be one of auto, bfloat16"):
        load(write_gguf(tmp_path / "m.gguf", TINY), CpuSettings(kv_cache_dtype="fp8"))


def test_unless_it_is_set_there_is_a_thread_for_each_core_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7, 8})
    assert load(write_gguf(tmp_path / "m.gguf", TINY)).threads == 4


def test_the_model_s_own_context_is_the_default_of_the_positions(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    assert load(path).weights.cosines.shape == (1, 96, 16)
    found = load_model(read_card(path), CpuSettings(), lambda done, total: None, num_positions=10)
    assert found.weights.cosines.shape == (1, 10, 16)


def test_kernels_may_be_forced_if_the_machine_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    assert load(path, isa=Isa.PLAIN).isa is Isa.PLAIN
    monkeypatch.setattr("headway.compute.cpu.features.host_features", frozenset)
    assert load(path).isa is Isa.PLAIN
    with pytest.raises(ValueError, match="does not offer avx2"):
        load(path, isa=Isa.AVX2)


def test_settings_may_be_plain_words_of_a_file() -> None:
    assert msgspec.convert({"threads": 2}, CpuSettings).threads == 2
    with pytest.raises(msgspec.ValidationError, match="dtype"):
        msgspec.convert({"dtype": "bfloat16"}, CpuSettings)


@pytest.mark.parametrize("threads", [0, -1])
def test_startup_config_01_no_threads_are_refused(threads: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY)
    with pytest.raises(InvalidSetting, match=rf"--threads: must be at least 1, got {threads}"):
        load(path, CpuSettings(threads=threads))


@pytest.mark.parametrize("head_dim", [16, 48, 80])
def test_heads_that_vectors_do_not_fit_are_refused_with_another_way(
    head_dim: int, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama(head_dim=head_dim))
    with pytest.raises(ExecutorUnsuitable) as caught:
        load(path)
    assert caught.value.message == (
        f"{path}: heads of {head_dim} values: the CPU executor takes multiples of 32; "
        "use --executor torch"
    )
