"""A replica put together: model, KV pool, tokenizer and engine, whatever computes."""

import os
from array import array
from collections.abc import Callable
from typing import Protocol

import msgspec

from headway.core.base.errors import NotEnoughMemory
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.engine.settings import EngineSettings, ResolvedEngine, host_blocks, resolve
from headway.core.messages.health import LoadProgress, ReplicaHello
from headway.core.messages.path import Sampling
from headway.core.messages.step import SamplingState, ScoreWork, StepPlan
from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_table
from headway.service.replica.server import Loaded

GIB = 1024**3


class LoadedWeights(Protocol):
    """What every executor's loaded model tells."""

    @property
    def card(self) -> ModelCard:
        """Shape and habits."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory taken."""
        ...

    @property
    def bytes_per_kv_value(self) -> float:
        """Size of one stored K or V value, with its part of a scale."""
        ...

    @property
    def dtype_name(self) -> str:
        """For people: "float32"."""
        ...

    @property
    def description(self) -> str:
        """For people: what computes, with how many threads."""
        ...


def served_card(card: ModelCard, engine: EngineSettings) -> ModelCard:
    """The card for the contexts that are served: what is rotated may depend on how long they are.

    Settled before memory is measured, so that "auto" counts as the model's whole context.
    """
    asked = engine.max_model_len
    return card.for_context(asked if isinstance(asked, int) else card.context_length)


def assemble(
    model_file: ModelFile,
    engine: ResolvedEngine,
    model: LoadedWeights,
    make_executor: Callable[[EngineCore], Executor],
    progress: Callable[[LoadProgress], None],
) -> tuple[EngineCore, Executor]:
    """The engine and its executor, which has done one step."""
    core = EngineCore(engine, build_table(model_file), model=model.card.name)
    executor = make_executor(core)
    progress(LoadProgress(stage="warm-up", done=0, total=1))
    warm_up(executor)
    progress(LoadProgress(stage="warm-up", done=1, total=1))
    return core, executor


def loaded(
    model: LoadedWeights,
    engine: ResolvedEngine,
    parts: tuple[EngineCore, Executor],
    load_s: Seconds,
) -> Loaded:
    """What the replica's server runs, and what it says of itself."""
    core, executor = parts
    hello = ReplicaHello(
        pid=os.getpid(),
        max_model_len=engine.max_model_len,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        dtype=model.dtype_name,
        executor=model.description,
        weight_bytes=model.weight_bytes,
        load_s=load_s,
        status=core.status(),
    )
    block_bytes = model.card.kv_bytes_per_token(model.bytes_per_kv_value) * engine.block_size
    return Loaded(engine=core, executor=executor, hello=hello, block_bytes=block_bytes)


def resolve_engine(
    settings: EngineSettings,
    model: LoadedWeights,
    free_bytes: int | None,
    host_bytes: int | None = None,
) -> ResolvedEngine:
    """Every open setting answered, the weights being there; raises NotEnoughMemory.

    free_bytes  what the device could still give
    host_bytes  the same of the machine, where that is not the same memory
    """
    pool_bytes = settings.kv_cache_memory_bytes if free_bytes is None else free_bytes
    if pool_bytes is None:
        raise NotEnoughMemory(
            "this system does not say how much memory is free; set --kv-cache-memory-bytes"
        )
    engine = resolve(settings, model.card, pool_bytes, model.bytes_per_kv_value)
    block_bytes = model.card.kv_bytes_per_token(model.bytes_per_kv_value) * engine.block_size
    if host_bytes is None and free_bytes is not None:
        host_bytes = free_bytes - engine.num_blocks * block_bytes
    return msgspec.structs.replace(
        engine, num_host_blocks=host_blocks(settings, block_bytes, host_bytes)
    )


def warm_up(executor: Executor) -> None:
    """One step of one token, drawn and scored: the first client waits for no first-time work.

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
            scores=(ScoreWork(0, array("i", [0]), 1),),
        )
    )
    executor.collect()
