"""Settings of the torch executor."""

from enum import StrEnum

import msgspec

from headway.core.base.errors import InvalidSetting


class DtypeChoice(StrEnum):
    """What matrices and KV are stored in; AUTO is float32 on CPUs and bfloat16 on GPUs."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class DeviceChoice(StrEnum):
    """Where to compute."""

    CPU = "cpu"
    CUDA = "cuda"


class AttentionChoice(StrEnum):
    """How to compute attention; REFERENCE is for comparison, it is slow."""

    SDPA = "sdpa"
    REFERENCE = "reference"


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set; `None` means decide at start."""

    dtype: DtypeChoice = DtypeChoice.AUTO
    device: DeviceChoice = DeviceChoice.CPU
    threads: int | None = None  # of one operation on the CPU; None: torch's choice, one a core
    attention: AttentionChoice = AttentionChoice.SDPA


def check(settings: ExecutorSettings) -> None:
    """Refuse what is impossible; raises InvalidSetting."""
    if settings.threads is not None and settings.threads < 1:
        raise InvalidSetting("--threads", f"must be at least 1, got {settings.threads}")
