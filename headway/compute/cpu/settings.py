"""Settings of the CPU executor."""

import msgspec

from headway.core.base.errors import InvalidSetting


class CpuSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set; `None` means decide at start."""

    threads: int | None = None  # None: one for each core this process may use


def check(settings: CpuSettings) -> None:
    """Refuse what is impossible; raises InvalidSetting."""
    if settings.threads is not None and settings.threads < 1:
        raise InvalidSetting("--threads", f"must be at least 1, got {settings.threads}")
