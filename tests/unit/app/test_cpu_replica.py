import os

import msgspec
import pytest

from headway.app.cpu_replica import bytes_needed, load_cpu, refuse_too_big
from headway.app.head_tensors import divided
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.settings import CpuSettings
from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.engine.settings import EngineSettings
from headway.core.messages.health import LoadProgress
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.model_files import ModelFile
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import Launch, ReplicaSpec
from tests.fault.scripted import SPEC

GIB = 1024**3
SMALL = EngineSettings(
    max_model_len=64,
    max_num_seqs=2,
    kv_cache_memory_bytes=8 << 20,
    kv_host_memory_bytes=4 << 20,
)


def launch(spec: ReplicaSpec) -> Launch:
    return Launch(spec=spec, commands_address="ipc:///tmp/c", reports_address="ipc:///tmp/r")


def test_a_loaded_replica_introduces_itself_and_has_done_one_step(smollm2: ModelFile) -> None:
    seen: list[LoadProgress] = []
    spec = ReplicaSpec(model_path=smollm2.path, card=smollm2.card, engine=SMALL, threads=2)
    found = load_cpu(launch(spec), seen.append, SystemClock())
    assert isinstance(found.executor, CpuExecutor)
    assert (found.executor.pool.keys[:, 0, :, :, 0] != 0).any(), "block 0 was written"
    assert not found.executor.pool.keys[:, 1:].any()
    found.executor.close()
    hello = found.hello
    assert hello.pid == os.getpid()
    assert (hello.max_model_len, hello.block_size, hello.max_num_seqs) == (64, 16, 2)
    assert hello.dtype == "Q4_1, head Q8_0"
    assert hello.executor.startswith("numba cpu ")
    assert hello.executor.endswith(", Q4_1, head Q8_0 weights, bfloat16 KV, 2 threads")
    assert hello.weight_bytes == pytest.approx(smollm2.weight_bytes, rel=0.05)
    assert hello.load_s > 0
    assert found.block_bytes == 16 * smollm2.card.kv_bytes_per_token(2)
    assert hello.num_blocks == (8 << 20) // found.block_bytes
    assert hello.status.host_blocks_total == (4 << 20) // found.block_bytes
    stages = [each.stage for each in seen]
    assert stages == ["weights"] * (len(seen) - 2) + ["warm-up"] * 2
    weights = [each.done for each in seen[:-2]]
    assert weights[0] == 0
    assert weights == sorted(weights)
    assert weights[-1] == seen[0].total
    assert [(each.done, each.total) for each in seen[-2:]] == [(0, 1), (1, 1)]


def test_a_replica_with_8_bits_of_kv_has_nearly_twice_the_blocks(smollm2: ModelFile) -> None:
    spec = ReplicaSpec(
        model_path=smollm2.path,
        card=smollm2.card,
        engine=SMALL,
        threads=2,
        kv_cache_dtype="int8",
    )
    found = load_cpu(launch(spec), lambda progress: None, SystemClock())
    assert found.hello.executor.endswith(", int8 KV, 2 threads")
    assert isinstance(found.executor, CpuExecutor)
    pool = found.executor.pool
    assert found.hello.num_blocks == (8 << 20) // found.block_bytes
    assert pool.keys.nbytes + pool.values.nbytes == found.hello.num_blocks * found.block_bytes
    bfloat16_bytes = 16 * smollm2.card.kv_bytes_per_token(2)
    assert bfloat16_bytes / found.block_bytes == pytest.approx(128 / 68)
    found.executor.close()


def test_startup_config_01_impossible_settings_are_refused_before_the_file_is_opened() -> None:
    spec = msgspec.structs.replace(SPEC, engine=EngineSettings(block_size=3))
    with pytest.raises(InvalidSetting, match="--block-size"):
        load_cpu(launch(spec), lambda progress: None, SystemClock())


@pytest.mark.parametrize(
    ("quantization", "value_bytes"),
    [
        # of F32, F16, BF16, Q8_0, Q4_0, Q4_1, and of an F32 head
        ("none", [4, 4, 2, 34 / 32, 18 / 32, 20 / 32, 4]),
        ("auto", [34 / 32] * 4 + [18 / 32, 20 / 32, 34 / 32]),
        ("int4", [20 / 32] * 4 + [18 / 32, 20 / 32, 34 / 32]),
    ],
)
def test_memory_is_that_of_the_weights_as_they_will_be_packed(
    quantization: str, value_bytes: list[float]
) -> None:
    sizes = {"F32": 128, "F16": 64, "BF16": 64, "Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
    tensors = [TensorEntry(kind, (32, 10), kind, 0, 10 * size) for kind, size in sizes.items()]
    tensors += [TensorEntry("output.weight", (32, 10), "F32", 0, 1280)]
    tensors += [TensorEntry("norm", (32,), "F32", 0, 128)]
    settings = CpuSettings(quantization=quantization)
    assert bytes_needed(divided(tensors), settings) == 320 * sum(value_bytes) + 128


@pytest.mark.parametrize("name", ["token_embd.weight", "model.embed_tokens.weight"])
@pytest.mark.parametrize(
    ("kind", "quantization", "head", "copied"),
    [
        ("F32", "auto", 34 / 32, 128),
        ("F16", "int4", 34 / 32, 64),
        ("Q8_0", "auto", 34 / 32, 0),
        ("F32", "none", 4, 0),
        ("Q6_K", "auto", 34 / 32, 26),
    ],
)
def test_rows_of_a_tied_head_that_changes_its_type_are_in_memory_twice(
    kind: str, quantization: str, head: float, copied: int, name: str
) -> None:
    file_bytes = {"F32": 128, "F16": 64, "Q8_0": 34, "Q6_K": 26}[kind]
    tensors = [TensorEntry(name, (32, 10), kind, 0, 10 * file_bytes)]
    settings = CpuSettings(quantization=quantization)
    assert bytes_needed(divided(tensors), settings) == 320 * head + 10 * copied
    # With a head of its own nothing but the rows is kept of an embedding.
    tensors += [TensorEntry("lm_head.weight", (32, 10), "Q8_0", 0, 340)]
    assert bytes_needed(divided(tensors), settings) == 340 + 10 * file_bytes
    tied = divided(tensors, is_tied=True)
    assert bytes_needed(tied, settings) == 320 * head + 10 * copied


def test_an_attention_s_output_is_no_head() -> None:
    tensors = [TensorEntry("blk.0.attn_output.weight", (32, 10), "F32", 0, 1280)]
    assert bytes_needed(divided(tensors), CpuSettings(quantization="int4")) == 320 * 20 / 32


def test_memory_of_types_that_no_kernel_reads_is_that_of_the_nearest() -> None:
    tensors = [TensorEntry("x", (256, 10), kind, 0, 1) for kind in ("Q4_K", "Q5_0", "Q6_K")]
    values = {"auto": [20 / 32, 34 / 32, 34 / 32], "none": [4, 34 / 32, 4]}
    for quantization, each in values.items():
        settings = CpuSettings(quantization=quantization)
        assert bytes_needed(divided(tensors), settings) == 2560 * sum(each)


def test_startup_config_01_weights_that_cannot_fit_are_refused_before_they_are_read() -> None:
    refuse_too_big(2 * GIB, 2 * GIB)
    refuse_too_big(2 * GIB, None)  # unknown: try
    with pytest.raises(NotEnoughMemory) as caught:
        refuse_too_big(3 * GIB, 2 * GIB)
    assert caught.value.message == (
        "the weights take 3.0 GiB, but only 2.0 GiB of memory are free; use a smaller model"
    )
