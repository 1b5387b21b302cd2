"""A replica that computes with torch."""

import math
from collections.abc import Callable, Sequence

import torch

from headway.app.assembly import GIB, assemble, loaded, resolve_engine, served_card
from headway.compute.gpu.runner.executor import GpuExecutor
from headway.compute.gpu.runner.loading import LoadedModel, load_model
from headway.compute.gpu.runner.settings import (
    AttentionChoice,
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
)
from headway.core.base.clock import Clock
from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from headway.core.base.units import Seconds
from headway.core.engine.settings import check
from headway.core.fleet.budget import DeviceShare
from headway.core.messages.health import LoadProgress
from headway.service.control.memory import available_bytes
from headway.service.loaders.model_files import open_model
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch, ReplicaSpec


def load_torch(launch: Launch, progress: Callable[[LoadProgress], None], clock: Clock) -> Loaded:
    """Everything from the model file to a replica that has done one step; raises StartError."""
    began = clock.now()
    spec = launch.spec
    check(spec.engine, spec.card)  # before minutes of loading
    settings = executor_settings(spec)
    model_file = open_model(spec.model_path)
    if settings.device == DeviceChoice.CPU:
        shapes = [tensor.shape for tensor in model_file.tensors]
        refuse_too_big(shapes, settings.dtype, available_bytes())
    model = load_model(
        served_card(model_file.card, spec.engine),
        settings,
        lambda done, total: progress(LoadProgress(stage="weights", done=done, total=total)),
    )
    on_cpu = settings.device == DeviceChoice.CPU
    host_bytes = None if on_cpu else available_bytes()
    engine = resolve_engine(spec.engine, model, free_bytes(model, spec.device_share), host_bytes)
    parts = assemble(
        model_file,
        engine,
        model,
        lambda core: GpuExecutor(model, engine, core.grid.view, core.grid.width),
        progress,
    )
    return loaded(model, engine, parts, Seconds(clock.now() - began))


def executor_settings(spec: ReplicaSpec) -> ExecutorSettings:
    """The spec's plain words as the executor's choices; raises InvalidSetting."""
    for name, choices in (
        ("dtype", DtypeChoice),
        ("device", DeviceChoice),
        ("attention", AttentionChoice),
    ):
        value, allowed = getattr(spec, name), [choice.value for choice in choices]
        if value not in allowed:
            raise InvalidSetting(f"--{name}", f"must be one of {', '.join(allowed)}, got {value!r}")
    return ExecutorSettings(
        dtype=DtypeChoice(spec.dtype),
        device=DeviceChoice(spec.device),
        threads=spec.threads,
        attention=AttentionChoice(spec.attention),
    )


def refuse_too_big(
    shapes: Sequence[Sequence[int]], dtype: DtypeChoice, free_bytes: int | None
) -> None:
    """Raise NotEnoughMemory when the weights alone would not fit; better than being killed."""
    value_bytes = 2 if dtype == DtypeChoice.BFLOAT16 else 4
    needed = value_bytes * sum(math.prod(shape) for shape in shapes)
    if free_bytes is not None and needed > free_bytes:
        halved = "" if value_bytes == 2 else " or --dtype bfloat16, which takes half"
        raise NotEnoughMemory(
            f"the weights take {needed / GIB:.1f} GiB as {8 * value_bytes}-bit numbers, but only "
            f"{free_bytes / GIB:.1f} GiB of memory are free; use a smaller model{halved}"
        )


def free_bytes(model: LoadedModel, share: DeviceShare) -> int | None:
    """What the device could still give, the weights being there; None if it does not say.

    Of a GPU only what other engines there leave, also those that have not loaded yet.
    """
    if model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        return share.room(int(total), int(free), model.weight_bytes)
    return available_bytes()
