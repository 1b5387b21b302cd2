"""A replica that computes with NumPy and Numba: the default on CPUs, without torch."""

import math
from collections.abc import Callable, Iterable

from headway.app.assembly import GIB, assemble, loaded, resolve_engine
from headway.compute.cpu.conversion import packed_type
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.host_tier import HostMemory
from headway.compute.cpu.loading import load_model
from headway.compute.cpu.sampler import warm_up
from headway.compute.cpu.settings import CpuSettings, Quantization
from headway.core.base.clock import Clock
from headway.core.base.errors import NotEnoughMemory
from headway.core.base.units import Seconds
from headway.core.engine.settings import check
from headway.core.messages.health import LoadProgress
from headway.service.control.memory import available_bytes
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.model_files import open_model
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch, ReplicaSpec

HEADS = ("token_embd.weight", "output.weight")
BYTES_PER_VALUE = {"Q8_0": 34 / 32, "Q4_1": 20 / 32, "F32": 4, "F16": 4}  # F16 becomes float32


def load_cpu(launch: Launch, progress: Callable[[LoadProgress], None], clock: Clock) -> Loaded:
    """Everything from the model file to a replica that has done one step; raises StartError."""
    began = clock.now()
    spec = launch.spec
    check(spec.engine, spec.card)  # before anything is read
    settings = cpu_settings(spec)
    model_file = open_model(spec.model_path)
    refuse_too_big(bytes_needed(model_file.tensors, settings), available_bytes())
    model = load_model(
        model_file.card,
        settings,
        lambda done, total: progress(LoadProgress(stage="weights", done=done, total=total)),
    )
    engine = resolve_engine(spec.engine, model, available_bytes())
    warm_up()
    parts = assemble(
        model_file,
        engine,
        model,
        lambda core: CpuExecutor(
            model,
            engine,
            core.grid.view,
            core.grid.width,
            HostMemory(available_bytes, is_checked=spec.check_when_idle),
        ),
        progress,
    )
    return loaded(model, engine, parts, Seconds(clock.now() - began))


def cpu_settings(spec: ReplicaSpec) -> CpuSettings:
    """The spec's plain words as the executor's settings."""
    return CpuSettings(
        threads=spec.threads,
        cpu_isa=spec.cpu_isa,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype,
    )


def bytes_needed(tensors: Iterable[TensorEntry], settings: CpuSettings) -> int:
    """Memory for the weights, as they will be packed."""
    quantization = Quantization(settings.quantization)
    return sum(_packed_bytes(tensor, quantization) for tensor in tensors)


def _packed_bytes(tensor: TensorEntry, quantization: Quantization) -> int:
    if len(tensor.shape) < 2:
        return tensor.num_bytes
    kind = packed_type(
        tensor.type_name,
        tensor.name,
        tensor.shape[0],  # GGUF's order
        quantization,
        is_head=tensor.name.endswith((*HEADS, "embed_tokens.weight", "lm_head.weight")),
    )
    if kind == tensor.type_name and kind != "F16":
        return tensor.num_bytes
    return int(math.prod(tensor.shape) * BYTES_PER_VALUE[kind])


def refuse_too_big(weight_bytes: int, free_bytes: int | None) -> None:
    """Raise NotEnoughMemory when the weights alone would not fit; better than being killed."""
    if free_bytes is not None and weight_bytes > free_bytes:
        raise NotEnoughMemory(
            f"the weights take {weight_bytes / GIB:.1f} GiB, but only "
            f"{free_bytes / GIB:.1f} GiB of memory are free; use a smaller model"
        )
