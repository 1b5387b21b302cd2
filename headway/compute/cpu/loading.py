"""From a model file to a model that the CPU executor can run."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from headway.compute.cpu.features import detect
from headway.compute.cpu.kvpool import bytes_per_value
from headway.compute.cpu.settings import CpuSettings, Isa, KvDtype, check, kv_dtype_of
from headway.compute.cpu.weights import WeightReader, Weights
from headway.core.base.errors import ExecutorUnsuitable
from headway.core.base.model_card import ModelCard

log = logging.getLogger(__name__)

HEAD_DIM_STEP = 32  # what attention's vectors cut a head into


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, without any KV yet."""

    card: ModelCard
    weights: Weights
    isa: Isa
    threads: int
    kv_dtype: KvDtype

    dtype_name = "as in the file"

    @property
    def bytes_per_kv_value(self) -> float:
        """Of one number with its part of a scale."""
        return bytes_per_value(self.kv_dtype, self.card.head_dim)

    @property
    def weight_bytes(self) -> int:
        """Memory taken by packed matrices, norms and tables."""
        return self.weights.num_bytes

    @property
    def description(self) -> str:
        """For people: what computes."""
        return f"numba cpu {self.isa}, {self.kv_dtype} KV, {self.threads} threads"


def load_model(
    card: ModelCard,
    settings: CpuSettings,
    progress: Callable[[int, int], None],
    *,
    num_positions: int | None = None,
    isa: Isa | None = None,
) -> LoadedModel:
    """Check the file whole, then read and pack it.

    num_positions  the longest context that will be served; None: the model's own
    isa            instead of the best that kernels may use, for tests of the linear layers

    Raises InvalidSetting and ModelFileError, both before memory is taken.
    """
    check(settings)
    if card.head_dim % HEAD_DIM_STEP:
        raise ExecutorUnsuitable(
            card.path,
            f"heads of {card.head_dim} values: the CPU executor takes multiples of "
            f"{HEAD_DIM_STEP}; use --executor torch",
        )
    found, kv_dtype = detect(isa), kv_dtype_of(settings.kv_cache_dtype)
    threads = settings.threads or len(os.sched_getaffinity(0))
    log.info(
        "cpu_kernels",
        extra={"isa": str(found), "threads": threads, "kv_cache_dtype": str(kv_dtype)},
    )
    weights = WeightReader(card).read(num_positions or card.context_length, progress)
    return LoadedModel(card=card, weights=weights, isa=found, threads=threads, kv_dtype=kv_dtype)
