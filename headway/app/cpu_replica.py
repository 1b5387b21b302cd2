"""A replica that computes with NumPy and Numba: the default on CPUs, without torch."""

import math
from collections.abc import Callable

from headway.app.assembly import GIB, assemble, loaded, resolve_engine, served_card
from headway.app.head_tensors import Divided, divided
from headway.compute.cpu.conversion import packed_type
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.host_tier import HostMemory
from headway.compute.cpu.loading import load_model
from headway.compute.cpu.pack import FORMAT_OF
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

BYTES_PER_VALUE = {"Q8_0": 34 / 32, "Q4_1": 20 / 32, "F32": 4, "F16": 4}  # F16 becomes float32


def load_cpu(launch: Launch, progress: Callable[[LoadProgress], None], clock: Clock) -> Loaded:
    """Everything from the model file to a replica that has done one step; raises StartError."""
    began = clock.now()
    spec = launch.spec
    check(spec.engine, spec.card)  # before anything is read
    settings = cpu_settings(spec)
    model_file = open_model(spec.model_path)
    matrices = divided(model_file.tensors, is_tied=model_file.card.is_head_tied)
    refuse_too_big(bytes_needed(matrices, settings), available_bytes())
    model = load_model(
        served_card(model_file.card, spec.engine),
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


def bytes_needed(tensors: Divided, settings: CpuSettings) -> int:
    """Memory for the weights, as they will be packed."""
    quantization = Quantization(settings.quantization)
    needed = sum(_packed_bytes(tensor, quantization, is_head=False) for tensor in tensors.others)
    head, embedding = tensors.head, tensors.embedding
    if head is not None:
        needed += _packed_bytes(head, quantization, is_head=True)
    if embedding is not None and not _is_read_from(head, embedding, quantization):
        needed += embedding.num_bytes  # its rows stay as they are in the file
    return needed


def _packed_bytes(tensor: TensorEntry, quantization: Quantization, *, is_head: bool) -> int:
    if len(tensor.shape) < 2:
        return tensor.num_bytes
    kind = _kind(tensor, quantization, is_head=is_head)
    if kind == tensor.type_name and kind != "F16":
        return tensor.num_bytes
    return int(math.prod(tensor.shape) * BYTES_PER_VALUE[kind])


def _is_read_from(
    head: TensorEntry | None, embedding: TensorEntry, quantization: Quantization
) -> bool:
    """Whether the packed head still has the embedding's own numbers."""
    kind = FORMAT_OF[_kind(embedding, quantization, is_head=True)]
    return head is embedding and kind is FORMAT_OF.get(embedding.type_name)


def _kind(tensor: TensorEntry, quantization: Quantization, *, is_head: bool) -> str:
    num_inputs = tensor.shape[0]  # GGUF's order
    return packed_type(tensor.type_name, tensor.name, num_inputs, quantization, is_head=is_head)


def refuse_too_big(weight_bytes: int, free_bytes: int | None) -> None:
    """Raise NotEnoughMemory when the weights alone would not fit; better than being killed."""
    if free_bytes is not None and weight_bytes > free_bytes:
        raise NotEnoughMemory(
            f"the weights take {weight_bytes / GIB:.1f} GiB, but only "
            f"{free_bytes / GIB:.1f} GiB of memory are free; use a smaller model"
        )
