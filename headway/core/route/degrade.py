"""A lesser answer rather than none: when a pool is past its threshold, and for whom.

A pool's *pressure* for a class is how far it is towards its threshold: expected wait over what the
class is promised, queue over the share of it that may be taken, or the engine's rung. It counts
as congested from pressure 1 on, until it has been below `leave_below` for `hold_s`: answers
do not change back and forth at the border. Nobody watches it but the requests that come.
"""

from collections.abc import Mapping, Sequence

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.base.units import Seconds
from headway.core.tenancy.tenant import NAMES, SloClass


class DegradeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a lesser answer is given, and which."""

    classes: tuple[str, ...] = ("standard", "internal")  # whose requests may be degraded
    smaller: dict[str, str] = {}  # pool -> the pool that helps out
    max_tokens: int | None = None  # bound of an answer where no other pool helps; None: none
    wait_factor: float = 1.0  # of what the class is promised: an expected wait over it
    best_effort_wait_s: float = 10.0  # the same for a class that is promised nothing
    queue_share: float = 0.8  # of the queue's places
    rung: int = 2  # of the engine's pressure ladder; 4: never
    leave_below: float = 0.7  # pressure
    hold_s: float = 5.0
    answer: str = ""  # text when no first token came in time; empty: none, it goes on waiting
    answer_after_s: float = 30.0


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at this moment, as routing sees it."""

    is_up: bool = True  # answers, or is loaded when it is asked
    wait_s: float = 0.0  # expected until the first token of a request that came now
    best_effort_wait_s: float = 0.0  # the same for a best-effort one
    queue_share: float = 0.0  # of its places that are taken, 0 to 1
    rung: int = 0


def check_degrade(settings: DegradeSettings, known: Sequence[str]) -> None:
    """Raise InvalidSetting that names the first field which cannot be, and why."""
    for name in settings.classes:
        if name not in NAMES:
            raise InvalidSetting(
                "routes.degrade.classes", f"{name!r} is none of {', '.join(NAMES)}"
            )
    _check_smaller(settings.smaller, known)
    for field in ("wait_factor", "best_effort_wait_s", "queue_share", "answer_after_s"):
        if not getattr(settings, field) > 0:
            raise _unfit(settings, field, "must be above 0")
    if not 0 < settings.leave_below <= 1:
        raise _unfit(settings, "leave_below", "must be above 0 and at most 1")
    if settings.max_tokens is not None and settings.max_tokens < 1:
        raise _unfit(settings, "max_tokens", "must be at least 1")
    if settings.rung < 1:
        raise _unfit(settings, "rung", "must be at least 1")
    if not settings.hold_s >= 0:
        raise _unfit(settings, "hold_s", "must be 0 or more")


def _unfit(settings: DegradeSettings, field: str, problem: str) -> InvalidSetting:
    return InvalidSetting(f"routes.degrade.{field}", f"{problem}, got {getattr(settings, field):g}")


def _check_smaller(smaller: Mapping[str, str], known: Sequence[str]) -> None:
    for pool, helper in smaller.items():
        where = f"routes.degrade.smaller.{pool}"
        for each in (pool, helper):
            if each not in known:
                there = ", ".join(sorted(known))
                raise InvalidSetting(where, f"there is no pool {each!r}; there are {there}")
        if pool in chain(smaller, pool):
            raise InvalidSetting(
                where, f"{pool!r} comes back to itself; let the last helper have none"
            )


def chain(smaller: Mapping[str, str], pool: str) -> tuple[str, ...]:
    """The pools that help this one out, in order; ends where it would come to one twice."""
    found: list[str] = []
    while (next_ := smaller.get(pool)) is not None and next_ not in found:
        found.append(next_)
        pool = next_
    return tuple(found)


class Congestion:
    """Which pools count as congested, for which class."""

    def __init__(self, settings: DegradeSettings, targets: Mapping[SloClass, Seconds]) -> None:
        self._settings = settings
        self._targets = targets
        self._until: dict[tuple[str, SloClass], Seconds] = {}  # congested at least until then

    def may_degrade(self, slo_class: SloClass) -> bool:
        """Whether requests of the class may get a lesser answer at all."""
        return slo_class.name.lower() in self._settings.classes

    def pressure(self, state: PoolState, slo_class: SloClass) -> float:
        """How far the pool is towards its threshold; 1 is there."""
        settings = self._settings
        promised = self._targets.get(slo_class)
        if promised is None:
            wait = state.best_effort_wait_s / settings.best_effort_wait_s
        else:
            wait = state.wait_s / (promised * settings.wait_factor)
        share = state.queue_share / settings.queue_share
        return max(wait, share, float(state.rung >= settings.rung))

    def is_congested(self, pool: str, state: PoolState, slo_class: SloClass, now: Seconds) -> bool:
        """Look at the pool now; remembers what it said for the next time."""
        key = (pool, slo_class)
        pressure = self.pressure(state, slo_class)
        was = now < self._until.get(key, now)
        if pressure >= 1.0 or (was and pressure >= self._settings.leave_below):
            self._until[key] = Seconds(now + self._settings.hold_s)
            return True
        return was

    def congested(self, now: Seconds) -> frozenset[tuple[str, SloClass]]:
        """The pools and classes that count as congested, as far as requests have looked at them."""
        return frozenset(key for key, until in self._until.items() if now < until)
