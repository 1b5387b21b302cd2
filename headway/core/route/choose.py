"""Where one request goes, and why: name, version, arm, size, modality, and a lesser pool."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.errors import UnsupportedModality
from headway.core.base.units import Seconds
from headway.core.messages.record import Route
from headway.core.route.cascade import CascadeSettings
from headway.core.route.degrade import Congestion, DegradeSettings, PoolState, chain
from headway.core.route.features import Prompt
from headway.core.route.size import Size, Sizer
from headway.core.route.split import pick
from headway.core.route.table import STABLE, AutoSettings, Found, RouteSettings, RouteTable
from headway.core.tenancy.tenant import SloClass, Tenant

# Which sizes stand in for one that cannot answer: rather a larger one than a smaller one.
INSTEAD: dict[Size, Sequence[Size]] = {
    Size.SMALL: (Size.MEDIUM, Size.LARGE),
    Size.MEDIUM: (Size.LARGE, Size.SMALL),
    Size.LARGE: (Size.MEDIUM, Size.SMALL),
}

States = Callable[[str], PoolState]


class Ask(NamedTuple):
    """What of a request decides where it goes."""

    request_id: str
    model: str | None
    tenant: Tenant
    slo_class: SloClass
    prompt: Callable[[], Prompt]  # called only where it decides anything
    max_tokens: int | None = None  # that its answer may have
    user: str | None = None
    modalities: frozenset[str] = frozenset()  # that it needs beside text
    is_bound: bool = False  # it holds token ids, or wants scores: another model's differ
    min_tokens: int = 0  # that its answer must have


class Choice(NamedTuple):
    """Where it goes."""

    route: Route
    name: str  # of the route
    cascade: CascadeSettings | None = None  # who answers if this one is not sure
    avoided: str = ""  # pool that was to answer, and cannot
    instead_of: str = ""  # pool that was to answer, and is congested or has refused


class Chooser:
    """Decides by the table, the prompt and the pools' states; remembers who is congested."""

    def __init__(
        self, table: RouteTable, sizer: Sizer | None, congestion: Congestion | None
    ) -> None:
        self.table = table
        self.congestion = congestion
        self._sizer = sizer

    def choose(self, ask: Ask, found: Found, states: States, now: Seconds) -> Choice:
        """Where the request goes; raises UnsupportedModality.

        found  what `table.find` gave for its model
        """
        choice = (
            self._sized(ask, found, states)
            if found.route is None
            else self._named(ask, found, found.route, states)
        )
        choice = self._able(ask, found, choice, states)
        return self._degraded(ask, choice, states, now)

    def helper(self, ask: Ask, choice: Choice, states: States) -> Choice | None:
        """Where it goes when the chosen pool has refused it; None: nowhere."""
        settings = self._degrades(ask)
        if settings is None or ask.is_bound:
            return None
        for pool in chain(settings.smaller, choice.route.model):
            if states(pool).is_up and self._takes(pool, ask):
                return _moved(choice, pool)
        return None

    def answer_instead(self, ask: Ask) -> tuple[str, float] | None:
        """The fixed answer and after how many seconds without a token it is given, if it may be."""
        settings = self._degrades(ask)
        if settings is None or ask.is_bound or not settings.answer:
            return None
        return settings.answer, settings.answer_after_s

    def _named(self, ask: Ask, found: Found, route: RouteSettings, states: States) -> Choice:
        asked = ask.model or ""
        if route.cascade is not None:
            pools = route.cascade
            if ask.is_bound or not states(pools.first).is_up:
                made = Route(asked=asked, model=pools.then, reason="cascade:direct")
                return Choice(made, route.name)
            made = Route(asked=asked, model=pools.first, reason="cascade:first")
            return Choice(made, route.name, cascade=pools)
        version, arm, reason = found.version or STABLE, "", found.word
        if found.version is not None:
            reason = f"version:{version}"
        elif route.split:
            key, kind = _key(ask)
            version = arm = pick(route.name, route.split, key)
            reason = f"split:{kind}"
        pool = route.pool_of(version)
        is_alone = version == STABLE and not route.split  # however it is, there is no other
        if is_alone or states(pool).is_up:
            made = Route(asked=asked, model=pool, version=version, arm=arm, reason=reason)
            return Choice(made, route.name)
        others = {
            each: weight
            for each, weight in (route.split or {STABLE: 1.0}).items()
            if each != version and weight > 0 and states(route.pool_of(each)).is_up
        }
        if not others:  # its own pool then says why it cannot
            made = Route(asked=asked, model=pool, version=version, arm=arm, reason=reason)
            return Choice(made, route.name)
        instead = pick(route.name, others, _key(ask)[0])
        made = Route(
            asked=asked,
            model=route.pool_of(instead),
            version=instead,
            arm=instead if arm else "",
            reason=f"unhealthy:{version}",
        )
        return Choice(made, route.name, avoided=pool)

    def _sized(self, ask: Ask, found: Found, states: States) -> Choice:
        auto, sizer = self.table.settings.auto, self._sizer
        assert auto is not None, "there is an automatic choice, so it has settings"
        assert sizer is not None, "there is an automatic choice, so it has a sizer"
        size, special = sizer.size(ask.prompt())
        if special in auto.special and states(auto.special[special]).is_up:
            made = Route(
                asked=ask.model or "", model=auto.special[special], reason=f"special:{special}"
            )
            return Choice(made, found.name)
        pool, reason, avoided = _pool_of(auto, size), f"size:{size.value}", ""
        if not states(pool).is_up:
            up = [each for each in INSTEAD[size] if states(_pool_of(auto, each)).is_up]
            if up:
                pool, reason, avoided = _pool_of(auto, up[0]), f"unhealthy:{size.value}", pool
        made = Route(asked=ask.model or "", model=pool, reason=reason)
        return Choice(made, found.name, avoided=avoided)

    def _able(self, ask: Ask, found: Found, choice: Choice, states: States) -> Choice:
        """The same, or a pool that takes what the request brings beside text."""
        if self._takes(choice.route.model, ask):
            return choice
        able = [pool for pool in self._alternatives(found) if self._takes(pool, ask)]
        needed = "+".join(sorted(ask.modalities))
        if not able:
            raise UnsupportedModality(
                f"The messages hold {needed.replace('+', ' and ')}, and no model that "
                f"{found.name!r} leads to takes that.",
                param="messages",
            )
        pool = next((each for each in able if states(each).is_up), able[0])
        versions = {} if found.route is None else found.route.versions
        version = next((each for each in versions if versions[each] == pool), STABLE)
        made = msgspec.structs.replace(
            choice.route, model=pool, reason=f"modality:{needed}", version=version, arm=""
        )
        return choice._replace(route=made, cascade=None)

    def _alternatives(self, found: Found) -> Sequence[str]:
        """Pools that may take over what the chosen one cannot read. A named version is not left."""
        route = found.route
        if found.version is not None:
            return ()
        own: tuple[str, ...] = ()
        if route is None and self.table.settings.auto is not None:
            own = self.table.settings.auto.pools
        elif route is not None and route.cascade is not None:
            own = route.pools
        return own if found.word != "default" and route is not None else (*own, *self.table.pools)

    def _takes(self, pool: str, ask: Ask) -> bool:
        return ask.modalities <= set(self.table.pools[pool].modalities)

    def _degraded(self, ask: Ask, choice: Choice, states: States, now: Seconds) -> Choice:
        settings, congestion = self._degrades(ask), self.congestion
        if settings is None or congestion is None:
            return choice

        def is_congested(pool: str) -> bool:
            return congestion.is_congested(pool, states(pool), ask.slo_class, now)

        route = choice.route
        if not is_congested(route.model):
            return choice
        for pool in () if ask.is_bound else chain(settings.smaller, route.model):
            if states(pool).is_up and self._takes(pool, ask) and not is_congested(pool):
                return _moved(choice, pool)
        bound = settings.max_tokens
        if bound is None or ask.min_tokens > bound or _is_short(ask, bound):
            return choice
        made = msgspec.structs.replace(route, degraded="max_tokens", max_tokens=bound)
        return choice._replace(route=made)

    def _degrades(self, ask: Ask) -> DegradeSettings | None:
        """The settings, if they are for this request."""
        settings, congestion = self.table.settings.degrade, self.congestion
        is_meant = congestion is not None and congestion.may_degrade(ask.slo_class)
        return settings if is_meant and ask.tenant.may_degrade else None


def _moved(choice: Choice, pool: str) -> Choice:
    made = msgspec.structs.replace(choice.route, model=pool, degraded="model")
    return choice._replace(route=made, cascade=None, instead_of=choice.route.model)


def _is_short(ask: Ask, bound: int) -> bool:
    return ask.max_tokens is not None and ask.max_tokens <= bound


def _key(ask: Ask) -> tuple[str, str]:
    """What an arm is drawn for, and which kind of thing that is."""
    tenant = ask.tenant.name
    if ask.user:
        return f"user\0{tenant}\0{ask.user}", "user"
    if tenant:
        return f"tenant\0{tenant}", "tenant"
    return f"request\0{ask.request_id}", "request"


def _pool_of(auto: AutoSettings, size: Size) -> str:
    return {Size.SMALL: auto.small, Size.MEDIUM: auto.medium, Size.LARGE: auto.large}[size]
