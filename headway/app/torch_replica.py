"""A replica that computes with torch: model, KV pool, tokenizer and engine put together."""

import math
import os
from array import array
from collections.abc import Callable, Sequence

import torch

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
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.engine.settings import EngineSettings, ResolvedEngine, check, resolve
from headway.core.messages.health import LoadProgress, ReplicaHello
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, StepPlan
from headway.service.control.memory import available_bytes
from headway.service.loaders.model_files import open_model
from headway.service.loaders.tokenizer_files import build_tokenizer
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch, ReplicaSpec

GIB = 1024**3


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
        model_file.card,
        settings,
        lambda done, total: progress(LoadProgress(stage="weights", done=done, total=total)),
    )
    engine = resolve(
        spec.engine, model.card, free_for_kv(spec.engine, model), model.bytes_per_kv_value
    )
    core = EngineCore(engine, build_tokenizer(model_file), model=model.card.name)
    executor = GpuExecutor(model, engine, core.grid.view, core.grid.width)
    progress(LoadProgress(stage="warm-up", done=0, total=1))
    warm_up(executor)
    progress(LoadProgress(stage="warm-up", done=1, total=1))
    return Loaded(
        engine=core,
        executor=executor,
        hello=_hello(model, engine, core, clock.now() - began),
        block_bytes=model.card.kv_bytes_per_token(model.bytes_per_kv_value) * engine.block_size,
    )


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


def free_for_kv(settings: EngineSettings, model: LoadedModel) -> int:
    """Bytes the device could still give, the weights being there; raises NotEnoughMemory."""
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        return int(free)
    known = available_bytes()
    if known is not None:
        return known
    if settings.kv_cache_memory_bytes is None:
        raise NotEnoughMemory(
            "this system does not say how much memory is free; set --kv-cache-memory-bytes"
        )
    return settings.kv_cache_memory_bytes


def warm_up(executor: Executor) -> None:
    """One step of one token, so that the first client does not wait for first-time work.

    It writes into block 0, which no sequence has yet; every position is written again before
    it is read.
    """
    sampling = Sampling(max_tokens=1, seed=0, temperature=1.0)
    executor.submit(
        StepPlan(
            step=0,
            tables=array("i", [0]),
            starts=array("i", [0]),
            num_tokens=array("i", [1]),
            token_ids=array("i", [0]),
            sequence_ids=(0,),
            sample_rows=array("i", [0]),
            positions=array("i", [0]),
            states=(SamplingState(sampling, 0, [0], 1, ()),),
        )
    )
    executor.collect()


def _hello(
    model: LoadedModel, engine: ResolvedEngine, core: EngineCore, load_s: float
) -> ReplicaHello:
    return ReplicaHello(
        pid=os.getpid(),
        max_model_len=engine.max_model_len,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        dtype=str(model.dtype).removeprefix("torch."),
        executor=model.description,
        weight_bytes=model.weight_bytes,
        load_s=load_s,
        status=core.status(),
    )
