"""Service classes, tenants, and how soon each class is promised its first token."""

import math
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from headway.core.base.units import Seconds
from headway.core.tenancy.limits import UNLIMITED, Limits


class SloClass(IntEnum):
    """How important a request is; a smaller number goes first."""

    VIP = 0
    STANDARD = 1
    INTERNAL = 2  # best effort: no promise, and refused first


NUM_CLASSES = len(SloClass)
NAMES: Mapping[str, SloClass] = {each.name.lower(): each for each in SloClass}
TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
WEIGHT = re.compile(r"\d{1,6}(\.\d{1,6})?")
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
    limits: Limits = UNLIMITED
    models: tuple[str, ...] = ()  # that it may use, by the names of the routes; empty: all
    may_degrade: bool = True  # to a smaller model or a shorter answer, rather than be refused


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as their key or token says; nothing in a request can change it."""

    tenant: Tenant = Tenant()
    key_id: str = ""  # public part of the key; "" for a key of the settings, or none


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
        raise ValueError(f"must be no longer for a class than for one below it, got {shown}")
    return targets


def read_tenants(items: Iterable[str]) -> tuple[tuple[str, Tenant], ...]:
    """Keys and whose they are, out of texts NAME:CLASS:KEY or NAME:CLASS*WEIGHT:KEY.

    The key is all that follows the second colon. A tenant may have several, each in a text of
    its own. Raises ValueError, which never repeats a key.
    """
    tenants: dict[str, Tenant] = {}
    keys: dict[str, Tenant] = {}
    for number, item in enumerate(items, 1):
        name, key, tenant = _tenant(item, number)
        if tenants.setdefault(name, tenant) != tenant:
            raise ValueError(f"must be one class and weight a tenant; {name!r} has two")
        if keys.setdefault(key, tenant) != tenant:
            raise ValueError(f"must be one tenant a key; number {number} has another's")
    return tuple(keys.items())


def _tenant(item: str, number: int) -> tuple[str, str, Tenant]:
    parts = item.split(":", 2)
    if len(parts) < 3 or not TENANT_NAME.fullmatch(parts[0]) or not parts[2].strip():
        raise ValueError(
            f"must be NAME:CLASS:KEY or NAME:CLASS*WEIGHT:KEY with a name of at most 64 "
            f"characters A-Z a-z 0-9 . _ -; number {number} is not"
        )
    word, has_weight, factor = parts[1].partition("*")
    if word not in NAMES:
        raise ValueError(f"must be a class of {', '.join(NAMES)} in number {number}")
    weight = float(factor) if WEIGHT.fullmatch(factor) else (0.0 if has_weight else 1.0)
    if not 0.001 <= weight <= 1000:
        raise ValueError(f"must be a weight of 0.001 to 1000 in number {number}")
    return parts[0], parts[2], Tenant(name=parts[0], slo_class=NAMES[word], weight=weight)


def _seconds(item: str, value: str) -> Seconds:
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(f"must be CLASS=SECONDS such as vip=0.5, got {item!r}") from None
    if not 0.001 <= seconds <= 1e6:
        raise ValueError(f"must be a time of 0.001 s or more, got {item!r}")
    return Seconds(seconds)
