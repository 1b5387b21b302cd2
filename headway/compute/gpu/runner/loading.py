"""From a model file to a model that can run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headway.compute.gpu.attn.backend import AttentionBackend
from headway.compute.gpu.attn.registry import BACKENDS
from headway.compute.gpu.models.decoder import Decoder
from headway.compute.gpu.models.registry import builder_for
from headway.compute.gpu.runner.settings import (
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
    check,
)
from headway.core.base.errors import InvalidSetting
from headway.core.base.model_card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, without any KV yet."""

    card: ModelCard
    decoder: Decoder
    attention: AttentionBackend
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int
    bytes_per_kv_value: int
    description: str  # e.g. "torch cpu float32, sdpa attention, 2 threads"

    @property
    def dtype_name(self) -> str:
        """For people: "float32"."""
        return str(self.dtype).removeprefix("torch.")


def load_model(
    card: ModelCard, settings: ExecutorSettings, progress: Callable[[int, int], None]
) -> LoadedModel:
    """Check the file whole, then read it.

    `progress` is told bytes done and bytes in all, at least at the beginning and the end.
    Raises InvalidSetting and ModelFileError, both before memory is taken. Sets torch's
    number of threads, which is the process's.
    """
    check(settings)
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    builder = builder_for(card, dtype, device)
    with torch.inference_mode():
        decoder = builder.build(progress)
    attention = BACKENDS[settings.attention]
    return LoadedModel(
        card=card,
        decoder=decoder,
        attention=attention,
        dtype=dtype,
        device=device,
        weight_bytes=builder.weight_bytes,
        bytes_per_kv_value=dtype.itemsize,
        description=_describe(attention, dtype, device),
    )


def _device(choice: DeviceChoice) -> torch.device:
    if choice == DeviceChoice.CUDA and not torch.cuda.is_available():
        raise InvalidSetting("--device", "cuda, but torch sees no CUDA device; use cpu")
    return torch.device(choice)


def _dtype(choice: DtypeChoice, device: torch.device) -> torch.dtype:
    if choice == DtypeChoice.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if choice == DtypeChoice.FLOAT32 else torch.bfloat16


def _describe(attention: AttentionBackend, dtype: torch.dtype, device: torch.device) -> str:
    dtype_name = str(dtype).removeprefix("torch.")
    where = f"torch {device.type} {dtype_name}, {attention.name} attention"
    threads = torch.get_num_threads()
    return where if device.type != "cpu" else f"{where}, {threads} threads"
