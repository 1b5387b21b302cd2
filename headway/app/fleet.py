"""The models of one server before anything slow begins: opened, named, and fitted into memory."""

import os.path
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import msgspec

from headway.app.head_tensors import divided
from headway.app.settings import Settings, replica_spec
from headway.core.base.errors import InvalidSetting, StartError
from headway.core.base.model_card import ModelCard
from headway.core.base.units import blocks_for
from headway.core.engine.settings import AUTO, DEFAULT_MEMORY_SHARE, check
from headway.core.fleet.budget import DeviceShare, Need, divide, share_device
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.model_files import ModelFile, SamplingDefaults
from headway.service.upstream.settings import UpstreamSettings
from headway.service.wire.spec import ReplicaSpec

QUANT_SUFFIX = re.compile(r"[.-](I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)
# Bytes a value of the weights in the CPU executor's memory, where they are not as in the file.
EIGHT_BITS, FOUR_BITS = 34 / 32, 20 / 32
AS_IN_FILE = frozenset({"Q8_0", "Q4_0", "Q4_1"})
TORCH_BYTES: Mapping[str, int] = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
SCALE_BYTES = 4.0  # of each head of a position, with K and V in 8 bits


class OpenedModel:
    """One model: its settings, its names, what its file says."""

    def __init__(self, settings: Settings, where: str, model_file: ModelFile) -> None:
        self.settings = settings
        self.where = where  # how messages about it begin; empty if it is the only one
        self.names = served_names(settings, model_file.path)
        self.card: ModelCard = model_file.card
        self.weight_bytes = weight_bytes(model_file, settings)
        is_own = settings.generation_config == AUTO
        self.sampling = model_file.sampling if is_own else SamplingDefaults()
        self.device_share = DeviceShare()  # see `fitted`
        self._model_file: ModelFile | None = model_file

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer, as far as settings and file say."""
        asked = self.settings.engine.max_model_len
        return asked if isinstance(asked, int) else self.card.context_length

    def spec(self) -> ReplicaSpec:
        """What its engine's process has to know."""
        made = replica_spec(self.settings, self.card)
        return msgspec.structs.replace(made, device_share=self.device_share)

    def take_model_file(self) -> ModelFile:
        """The file, once: its vocabulary, megabytes of text, is let go with it."""
        taken, self._model_file = self._model_file, None
        assert taken is not None, "the model file was taken before"
        return taken


def served_names(settings: Settings, path: str) -> tuple[str, ...]:
    """The names that were set, or a folder's, or a file's without and with its type of weights."""
    # os.path's: pathlib's raises for what is too long to be a path.
    stem = Path(path).name if os.path.isdir(path) else Path(path).stem
    return settings.served_model_name or tuple(dict.fromkeys((QUANT_SUFFIX.sub("", stem), stem)))


def opened(settings: Settings, index: int, count: int, model_file: ModelFile) -> OpenedModel:
    """One of `count` models, checked by itself; raises StartError, which says which one."""
    where = "" if count == 1 else f"models[{index}] ({served_names(settings, model_file.path)[0]})"
    model = OpenedModel(settings, where, model_file)
    try:
        check(settings.engine, model.card)
    except StartError as error:
        raise about(model, error) from None
    return model


def about(model: OpenedModel, error: StartError) -> StartError:
    """The same error with the model's place in front, where there are several."""
    return StartError(f"{model.where}: {error.message}") if model.where else error


def check_names(models: Sequence[OpenedModel], others: Sequence[UpstreamSettings] = ()) -> None:
    """Raise InvalidSetting where two models have a name in common.

    others  models that other servers answer for
    """
    taken: dict[str, str] = {}
    for model in models:
        for name in model.names:
            if name in taken:
                raise InvalidSetting(
                    f"{model.where}: served_model_name",
                    f"{name!r} is a name of {taken[name]} too; give each model its own",
                )
        taken |= dict.fromkeys(model.names, model.where or "the model")
    for other in others:
        for name in other.names:
            if name in taken:
                raise InvalidSetting(
                    "models: upstream.name",
                    f"{name!r} is a name of {taken[name]} too; give each model its own",
                )
        taken |= dict.fromkeys(other.names, f"another upstream ({other.urls[0]})")


def fitted(models: Sequence[OpenedModel], free: int | None) -> None:
    """Check that several engines fit into memory together, and give each its part of it.

    free  bytes that this machine could give; None: unknown, and nothing is checked

    A single engine decides for itself once its weights are loaded. What a GPU has only an engine
    there can ask: each is told what it has to leave to the others.
    Raises InvalidSetting and NotEnoughMemory.
    """
    _share_device([model for model in models if model.settings.executor.device != "cpu"])
    here = [model for model in models if model.settings.executor.device == "cpu"]
    count = sum(model.settings.pool.replicas for model in models)
    if count < 2 or not here or free is None:
        return
    for model, kv_bytes in zip(
        here, divide([_need(model) for model in here], free, DEFAULT_MEMORY_SHARE), strict=True
    ):
        engine = msgspec.structs.replace(model.settings.engine, kv_cache_memory_bytes=kv_bytes)
        model.settings = msgspec.structs.replace(model.settings, engine=engine)


def _share_device(models: Sequence[OpenedModel]) -> None:
    needs = [
        (
            model.settings.pool.replicas,
            model.weight_bytes,
            model.settings.engine.kv_cache_memory_bytes,
        )
        for model in models
    ]
    for model, share in zip(models, share_device(needs), strict=True):
        model.device_share = share


def weight_bytes(model_file: ModelFile, settings: Settings) -> int:
    """Memory that the weights will take, before an engine has packed them."""
    if _is_torch(settings):
        each = TORCH_BYTES.get(settings.executor.dtype, 4)
        return sum(prod(tensor.shape) for tensor in model_file.tensors) * each
    quantization = settings.cpu.quantization
    others, embedding, head = divided(model_file.tensors, is_tied=model_file.card.is_head_tied)
    total = sum(_packed_bytes(tensor, quantization) for tensor in others)
    if head is not None:  # never cut to 4 bits
        total += _packed_bytes(head, "none" if quantization == "none" else AUTO)
    if embedding is not None and (embedding is not head or _changes(embedding, quantization)):
        total += embedding.num_bytes  # its rows stay as they are in the file
    return int(total)


def _packed_bytes(tensor: TensorEntry, quantization: str) -> float:
    values = prod(tensor.shape)
    if len(tensor.shape) < 2 or tensor.type_name in AS_IN_FILE:
        return tensor.num_bytes
    if quantization == "none":  # float16 is computed with as float32
        return max(tensor.num_bytes, values * 4 if tensor.type_name == "F16" else 0)
    return values * (FOUR_BITS if quantization == "int4" else EIGHT_BITS)


def _changes(tensor: TensorEntry, quantization: str) -> bool:
    return quantization != "none" and tensor.type_name not in AS_IN_FILE


def _need(model: OpenedModel) -> Need:
    engine, card = model.settings.engine, model.card
    block = card.kv_bytes_per_token(_bytes_per_value(model)) * engine.block_size
    full = blocks_for(model.context_length, engine.block_size)
    return Need(
        where=model.where or f"--replicas {model.settings.pool.replicas}",
        replicas=model.settings.pool.replicas,
        weights=model.weight_bytes,
        kv_asked=engine.kv_cache_memory_bytes,
        kv_host=engine.kv_host_memory_bytes,
        kv_block=block,
        block_size=engine.block_size,
        context=2 if engine.max_model_len == AUTO else model.context_length,
        kv_most=engine.max_num_seqs * full * block,
    )


def _is_torch(settings: Settings) -> bool:
    return settings.executor_choice == "torch" or settings.executor.dtype != AUTO


def _bytes_per_value(model: OpenedModel) -> float:
    if _is_torch(model.settings):
        return TORCH_BYTES.get(model.settings.executor.dtype, 4)
    is_int8 = model.settings.cpu.kv_cache_dtype == "int8"
    return 1.0 + SCALE_BYTES / model.card.head_dim if is_int8 else 2.0
