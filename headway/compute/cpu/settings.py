"""Settings of the CPU executor."""

from enum import StrEnum

import msgspec

from headway.core.base.errors import InvalidSetting

AUTO = "auto"


class Isa(StrEnum):
    """Families of kernels, fastest first, by the newest instructions that they use."""

    AVX512_VNNI = "avx512-vnni"
    AVX_VNNI = "avx-vnni"
    AVX2 = "avx2"
    PLAIN = "plain"


class KvDtype(StrEnum):
    """How K and V are stored; the first is what "auto" means."""

    BFLOAT16 = "bfloat16"
    INT8 = "int8"  # with a float32 scale for each position of each head


class CpuChoices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set for this executor alone; "auto" means decide at start."""

    cpu_isa: str = AUTO  # an Isa: kernels use no instruction newer than that
    kv_cache_dtype: str = AUTO  # a KvDtype


class CpuSettings(CpuChoices, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the executor is told."""

    threads: int | None = None  # None: one for each core this process may use


def check(settings: CpuSettings) -> None:
    """Refuse what is impossible; raises InvalidSetting."""
    if settings.threads is not None and settings.threads < 1:
        raise InvalidSetting("--threads", f"must be at least 1, got {settings.threads}")


def isa_of(choice: str) -> Isa | None:
    """The family that --cpu-isa names; None for "auto". Raises InvalidSetting."""
    if choice == AUTO:
        return None
    try:
        return Isa(choice)
    except ValueError:
        raise InvalidSetting(
            "--cpu-isa", f"must be one of {', '.join((AUTO, *Isa))}; got {choice!r}"
        ) from None


def kv_dtype_of(choice: str) -> KvDtype:
    """The type that --kv-cache-dtype names. Raises InvalidSetting."""
    if choice == AUTO:
        return next(iter(KvDtype))
    try:
        return KvDtype(choice)
    except ValueError:
        raise InvalidSetting(
            "--kv-cache-dtype", f"must be one of {', '.join((AUTO, *KvDtype))}; got {choice!r}"
        ) from None
