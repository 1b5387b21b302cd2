"""Service classes, tenants, and how soon each class is promised its first token."""

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from headway.core.base.units import Seconds


class SloClass(IntEnum):
    """How important a request is; a smaller number goes first."""

    VIP = 0
    STANDARD = 1
    INTERNAL = 2  # best effort: no promise, and refused first


NUM_CLASSES = len(SloClass)
NAMES: Mapping[str, SloClass] = {each.name.lower(): each for each in SloClass}
# Seconds to the first token; a class that is not listed is promised nothing.
DEFAULT_TARGETS: Mapping[SloClass, Seconds] = {
    SloClass.VIP: Seconds(0.5),
    SloClass.STANDARD: Seconds(3.0),
}


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. Its share of its class is its weight over the weights of all that ask."""

    name: str = ""  # "" is everybody without a tenant of their own
    slo_class: SloClass = SloClass.STANDARD
    weight: float = 1.0


def class_named(name: str) -> SloClass:
    """The class of that name; raises ValueError that lists the names."""
    if name not in NAMES:
        raise ValueError(f"must be a class, one of {', '.join(NAMES)}; got {name!r}")
    return NAMES[name]


def lowered(own: SloClass, asked: SloClass | None) -> SloClass:
    """The class a request gets: what it asks for, but never above its tenant's own."""
    return own if asked is None else max(own, asked)


def read_targets(items: Iterable[str]) -> dict[SloClass, Seconds]:
    """Targets out of texts like "vip=0.5" and "internal=none"; the others keep their default.

    Raises ValueError when a class is unknown, a time is not above 0, or a more important
    class is promised less than one below it.
    """
    targets = dict(DEFAULT_TARGETS)
    for item in items:
        name, separator, value = item.partition("=")
        slo_class = class_named(name.strip())
        if not separator:
            raise ValueError(f"must be CLASS=SECONDS such as vip=0.5, got {item!r}")
        if value.strip() == "none":
            targets.pop(slo_class, None)
        else:
            targets[slo_class] = _seconds(item, value)
    times = [targets.get(each, math.inf) for each in SloClass]
    if times != sorted(times):
        shown = ", ".join(f"{k.name.lower()}={t:g}" for k, t in sorted(targets.items()))
        raise ValueError(f"must not promise a class less than one below it, got {shown}")
    return targets


def _seconds(item: str, value: str) -> Seconds:
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(f"must be CLASS=SECONDS such as vip=0.5, got {item!r}") from None
    if not 0.001 <= seconds <= 1e6:
        raise ValueError(f"must be a time of 0.001 s or more, got {item!r}")
    return Seconds(seconds)
