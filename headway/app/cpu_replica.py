"""A replica that computes with NumPy and Numba: the default on CPUs, without torch."""

from collections.abc import Callable, Iterable

from headway.app.assembly import GIB, assemble, loaded, resolve_engine
from headway.compute.cpu.executor import CpuExecutor
from headway.compute.cpu.loading import load_model
from headway.compute.cpu.sampler import warm_up
from headway.compute.cpu.settings import CpuSettings
from headway.core.base.clock import Clock
from headway.core.base.errors import NotEnoughMemory
from headway.core.base.units import Seconds
from headway.core.engine.settings import check
from headway.core.messages.health import LoadProgress
from headway.service.control.memory import available_bytes
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.model_files import open_model
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch


def load_cpu(launch: Launch, progress: Callable[[LoadProgress], None], clock: Clock) -> Loaded:
    """Everything from the model file to a replica that has done one step; raises StartError."""
    began = clock.now()
    spec = launch.spec
    check(spec.engine, spec.card)  # before anything is read
    model_file = open_model(spec.model_path)
    refuse_too_big(bytes_needed(model_file.tensors), available_bytes())
    model = load_model(
        model_file.card,
        CpuSettings(threads=spec.threads, kv_cache_dtype=spec.kv_cache_dtype),
        lambda done, total: progress(LoadProgress(stage="weights", done=done, total=total)),
    )
    engine = resolve_engine(spec.engine, model, available_bytes())
    warm_up()
    parts = assemble(
        model_file,
        engine,
        model,
        lambda core: CpuExecutor(model, engine, core.grid.view, core.grid.width),
        progress,
    )
    return loaded(model, engine, parts, Seconds(clock.now() - began))


def bytes_needed(tensors: Iterable[TensorEntry]) -> int:
    """Memory for the weights: as in the file, but F16 becomes float32."""
    return sum(tensor.num_bytes * (2 if tensor.type_name == "F16" else 1) for tensor in tensors)


def refuse_too_big(weight_bytes: int, free_bytes: int | None) -> None:
    """Raise NotEnoughMemory when the weights alone would not fit; better than being killed."""
    if free_bytes is not None and weight_bytes > free_bytes:
        raise NotEnoughMemory(
            f"the weights take {weight_bytes / GIB:.1f} GiB, but only "
            f"{free_bytes / GIB:.1f} GiB of memory are free; use a smaller model"
        )
