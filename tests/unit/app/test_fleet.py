"""Several models are checked together before anything slow begins."""

from pathlib import Path

import pytest

from headway.app.fleet import OpenedModel, check_names, fitted, opened, weight_bytes
from headway.app.settings import merge_models, threads_of
from headway.core.base.errors import InvalidSetting, NotEnoughMemory, StartError
from headway.core.fleet.budget import DEVICE_PROCESS_BYTES, DeviceShare
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.model_files import ModelFile, open_model
from tests.unit.service.loaders.samples import tiny

GIB = 1024**3


@pytest.fixture
def file(tmp_path: Path) -> ModelFile:
    return open_model(tiny(tmp_path / "tiny.gguf"))


def models(file: ModelFile, *entries: str) -> list[OpenedModel]:
    """Models of one file with settings such as "load=demand"."""
    chosen = merge_models({"model": [f"{file.path},{entry}" for entry in entries]}, {}, None)
    return [opened(each, i, len(entries), file) for i, each in enumerate(chosen)]


def test_two_models_of_one_name_are_refused(file: ModelFile) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_names(models(file, "served-model-name=a", "served-model-name=a"))
    assert caught.value.message == (
        "models[1] (a): served_model_name: 'a' is a name of models[0] (a) too; "
        "give each model its own"
    )
    check_names(models(file, "served-model-name=a", "served-model-name=b"))


def test_a_fault_of_one_model_says_which_one(file: ModelFile) -> None:
    with pytest.raises(StartError) as caught:
        models(file, "served-model-name=a", "served-model-name=b,max-model-len=9000")
    assert caught.value.message.startswith("models[1] (b): --max-model-len: 9000 is over the 128")


def test_a_single_model_is_left_to_its_engine(file: ModelFile) -> None:
    (one,) = models(file, "load=start")
    fitted([one], 1)
    assert one.settings.engine.kv_cache_memory_bytes is None
    assert one.where == ""


def test_replicas_of_one_model_each_get_a_part_of_the_memory(file: ModelFile) -> None:
    (one,) = models(file, "replicas=2")
    fitted([one], 2 * GIB)
    granted = one.settings.engine.kv_cache_memory_bytes
    assert granted is not None
    assert 0 < granted <= GIB // 2
    (many,) = models(file, "replicas=64")
    with pytest.raises(NotEnoughMemory, match=r"^--replicas 64: model: .* the 64 engines take"):
        fitted([many], 2 * GIB)


def test_the_cores_are_divided_among_replicas_unless_threads_are_set(file: ModelFile) -> None:
    (two,) = models(file, "replicas=2")
    assert [threads_of(two.settings, cores) for cores in (1, 2, 8, 9)] == [1, 1, 4, 4]
    (told,) = models(file, "replicas=2,threads=3")
    assert threads_of(told.settings, 8) == 3
    (one,) = models(file, "load=start")
    assert threads_of(one.settings, 8) is None


def test_models_that_did_not_say_get_equal_parts_and_those_that_did_what_they_said(
    file: ModelFile,
) -> None:
    found = models(
        file,
        "served-model-name=a,kv-cache-memory-bytes=1M",
        "served-model-name=b",
        "served-model-name=c",
    )
    fitted(found, 2 * GIB)
    granted = [each.settings.engine.kv_cache_memory_bytes for each in found]
    assert granted[0] == 2**20
    assert granted[1] == granted[2]
    assert granted[1] is not None
    assert found[1].spec().engine.kv_cache_memory_bytes == granted[1]


def test_too_much_for_this_machine_names_the_field_and_the_largest_that_fits(
    file: ModelFile,
) -> None:
    asked = ["served-model-name=a", "served-model-name=b,kv-cache-memory-bytes=8G"]
    with pytest.raises(InvalidSetting) as caught:
        fitted(models(file, *asked), 2 * GIB)
    said = caught.value.message
    assert said.startswith(f"models[1] (b): kv_cache_memory_bytes: {8 * GIB} is too much")
    largest = said.split("use ")[1].split(" ")[0]
    asked[1] = f"served-model-name=b,kv-cache-memory-bytes={largest}"
    with pytest.raises(InvalidSetting, match=r"models\[0\] \(a\): max_model_len"):
        fitted(models(file, *asked), 2 * GIB)  # nothing is left for a's own
    with pytest.raises(NotEnoughMemory, match=r"models\[0\] \(a\): model: its weights take"):
        fitted(models(file, *asked), 1)


def test_where_nobody_knows_the_memory_nothing_is_checked(file: ModelFile) -> None:
    found = models(file, "served-model-name=a", "served-model-name=b,kv-cache-memory-bytes=800G")
    fitted(found, None)
    assert found[0].settings.engine.kv_cache_memory_bytes is None


def test_models_on_gpus_do_not_count_against_the_machine_s_memory(file: ModelFile) -> None:
    on_gpu = "served-model-name=b,device=cuda,kv-cache-memory-bytes=800G"
    found = models(file, "served-model-name=a", on_gpu)
    fitted(found, 2 * GIB)
    assert found[0].settings.engine.kv_cache_memory_bytes is not None


@pytest.mark.parametrize(
    ("type_name", "entry", "bytes_per_value"),
    [
        ("Q4_1", "load=start", 20 / 32),
        ("F16", "load=start", 34 / 32),
        ("F16", "quantization=int4", 20 / 32),
        ("F16", "quantization=none", 4.0),
        ("F16", "executor=torch", 4.0),
        ("F16", "dtype=bfloat16", 2.0),
    ],
)
def test_weights_are_counted_as_the_engine_will_hold_them(
    file: ModelFile, type_name: str, entry: str, bytes_per_value: float
) -> None:
    in_file = {"Q4_1": 20 / 32, "F16": 2.0}[type_name]
    values = 64 * 32
    matrix = TensorEntry(
        name="blk.0.attn_q.weight",
        type_name=type_name,
        shape=(64, 32),
        offset=0,
        num_bytes=int(values * in_file),
    )
    (settings,) = merge_models({"model": [f"x,{entry}"]}, {}, None)
    found = weight_bytes(file._replace(tensors=(matrix,)), settings)
    assert found == values * bytes_per_value


def test_engines_on_a_gpu_are_told_what_to_leave_to_each_other(file: ModelFile) -> None:
    (one,) = models(file, "device=cuda")
    fitted([one], 2 * GIB)
    assert one.spec().device_share == DeviceShare()
    here, many, sized = models(
        file,
        "served-model-name=a",
        "served-model-name=b,device=cuda,replicas=3",
        "served-model-name=c,device=cuda,kv-cache-memory-bytes=1M",
    )
    fitted([here, many, sized], 2 * GIB)
    assert here.spec().device_share == DeviceShare()
    assert many.spec().device_share.sharers == 3
    assert sized.spec().device_share.sharers == 1
    weights = many.weight_bytes + DEVICE_PROCESS_BYTES
    assert sized.spec().device_share.taken == 3 * weights
    assert many.spec().device_share.taken == 3 * weights + 2**20
    assert many.settings.engine.kv_cache_memory_bytes is None
