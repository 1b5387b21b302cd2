"""The route table: which pools a model's name stands for, and in which version.

A name is that of a route, of an alias, or of a pool itself. `NAME@VERSION` asks for a version;
the word of a version alone asks for that version of the default route.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from headway.core.base.errors import InvalidSetting, ModelNotFound
from headway.core.route.cascade import CascadeSettings
from headway.core.route.degrade import DegradeSettings, check_degrade

AT = "@"  # between a name and a version
STABLE = "stable"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
MODALITIES = ("image", "audio", "video", "file")
SPECIAL = ("code", "math")
MAX_SHOWN = 80  # characters of a client's name that an error repeats


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What routing has to know of a pool."""

    names: tuple[str, ...]  # the first is the one that routes use
    modalities: tuple[str, ...] = ()  # that it takes beside text
    is_own: bool = True  # engines of ours answer, and not other servers
    has_logprobs: bool = True  # its answers can be scored, as a cascade's first one has to be


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name for clients. It has a `pool`, or `versions`, or a `cascade`."""

    name: str
    aliases: tuple[str, ...] = ()
    pool: str = ""  # the only version, `stable`
    versions: dict[str, str] = {}  # version -> pool; `stable` is one of them
    split: dict[str, float] = {}  # version -> weight; empty: all that name no version go to stable
    cascade: CascadeSettings | None = None

    def pool_of(self, version: str) -> str:
        """The pool of one of its versions."""
        if self.cascade is not None:
            return self.cascade.first
        return self.versions[version] if self.versions else self.pool

    @property
    def pools(self) -> tuple[str, ...]:
        """Every pool that it may send a request to."""
        if self.cascade is not None:
            return (self.cascade.first, self.cascade.then)
        return tuple(self.versions.values()) or (self.pool,)


class AutoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name under which the prompt decides whether a small, medium or large model answers."""

    small: str  # pools
    medium: str
    large: str
    name: str = "auto"
    method: Literal["classifier", "score"] = "classifier"
    confidence: float = 0.5  # that a smaller one suffices, before it is taken; 0 to 1
    medium_from: float = 1.0  # points of the score
    large_from: float = 2.5
    long_prompt_chars: int = 24_000  # of all messages; from here on the large one
    long_answer_tokens: int = 2048  # max_tokens; from here on not the small one
    special: dict[str, str] = {}  # "code", "math" -> pool, in place of the large one

    @property
    def pools(self) -> tuple[str, ...]:
        """Every pool that it may send a request to."""
        return (self.small, self.medium, self.large, *self.special.values())


class RoutesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `routes` of the configuration file."""

    default: str = ""  # name for requests that name no model; empty: the first pool
    names: tuple[RouteSettings, ...] = ()
    auto: AutoSettings | None = None
    degrade: DegradeSettings | None = None


class Found(NamedTuple):
    """What a client's name stands for: a route, or the automatic choice."""

    name: str  # of the route
    word: str  # how it was found: default, name, alias
    route: RouteSettings | None  # None: automatic
    version: str | None = None  # the one that was asked for
    said: str = ""  # the name that stood in the request, without a version; else the default one


def check(settings: RoutesSettings, pools: Sequence[PoolFacts]) -> None:
    """Raise InvalidSetting that names the first field which cannot be, and why."""
    known = [pool.names[0] for pool in pools]
    taken: dict[str, str] = {}
    for index, route in enumerate(settings.names):
        where = f"routes.names[{index}]"
        _check_route(route, where, pools)
        places = {f"{where}.name": route.name}
        places |= {f"{where}.aliases[{i}]": alias for i, alias in enumerate(route.aliases)}
        _check_names(places, where, route.pools, pools, taken)
    if settings.auto is not None:
        _check_auto(settings.auto, known)
        names = {"routes.auto.name": settings.auto.name}
        _check_names(names, "routes.auto", settings.auto.pools, pools, taken)
    if settings.degrade is not None:
        check_degrade(settings.degrade, known)
    served = {name for pool in pools for name in pool.names} | set(taken)
    if settings.default and settings.default not in served:
        raise InvalidSetting(
            "routes.default",
            f"{settings.default!r} is no name of a route or pool; there are {_listed(served)}",
        )


def names_of(settings: RoutesSettings) -> Iterator[str]:
    """Every name that routes add for clients, aliases too."""
    for route in settings.names:
        yield route.name
        yield from route.aliases
    if settings.auto is not None:
        yield settings.auto.name


class RouteTable:
    """Finds what a name stands for; made of settings that `check` has let pass.

    Not configured, every pool is found by its own names, and clients are told nothing of routes.
    """

    def __init__(
        self, settings: RoutesSettings, pools: Sequence[PoolFacts], *, is_configured: bool = True
    ) -> None:
        self.settings = settings
        self.is_configured = is_configured
        self.pools: Mapping[str, PoolFacts] = {pool.names[0]: pool for pool in pools}
        self._by_name: dict[str, Found] = {}
        for pool in pools:
            own = RouteSettings(name=pool.names[0], aliases=pool.names[1:], pool=pool.names[0])
            self._add(own)
        for route in settings.names:
            self._add(route)
        if settings.auto is not None:
            name = settings.auto.name
            self._by_name[name] = Found(name, "name", None, said=name)
        self._default = self._by_name[settings.default or pools[0].names[0]]._replace(
            word="default"
        )

    @property
    def names(self) -> Mapping[str, str]:
        """Every name that may be asked for, with the pool that stands for it in lists."""
        return {name: self.shown_pool(found) for name, found in self._by_name.items()}

    @property
    def default(self) -> str:
        """The name that is meant where a request names none."""
        return self._default.said

    def shown_pool(self, found: Found) -> str:
        """The pool that stands for a route where no request is there to choose by."""
        if found.route is not None:
            return found.route.pool_of(STABLE)
        auto = self.settings.auto
        assert auto is not None, "only the automatic choice has no route"
        return auto.large

    def find(self, asked: str | None) -> Found:
        """What the name stands for; raises ModelNotFound, which lists the names there are."""
        if asked is None:
            return self._default
        found = self._by_name.get(asked)
        if found is not None:
            return found
        name, at, version = asked.rpartition(AT)
        found = self._by_name.get(name) if at else None
        if found is not None:
            return self._versioned(found, version)
        if self.is_version(asked):
            return self._default._replace(version=asked)
        raise unknown(asked, self._by_name)

    def versioned(self, asked: str) -> tuple[str, str] | None:
        """Of a name with a version: the name alone, and the pool; None for every other name."""
        try:
            found = self.find(asked)
        except ModelNotFound:
            return None
        if found.route is None or found.version is None:
            return None
        return found.said, found.route.pool_of(found.version)

    def is_version(self, word: str) -> bool:
        """Whether the word alone means a version of the default route, and is no name."""
        route = self._default.route
        return word not in self._by_name and route is not None and word in route.versions

    def _versioned(self, found: Found, version: str) -> Found:
        versions = {} if found.route is None else found.route.versions
        if version not in versions:
            raise ModelNotFound(
                f"The model {found.name!r} has no version {version[:MAX_SHOWN]!r}. "
                f"It has: {', '.join(versions) or 'none to choose from'}.",
                param="model",
            )
        return found._replace(version=version)

    def _add(self, route: RouteSettings) -> None:
        self._by_name[route.name] = Found(route.name, "name", route, said=route.name)
        for alias in route.aliases:
            self._by_name[alias] = Found(route.name, "alias", route, said=alias)


def unknown(name: str, served: Iterable[str]) -> ModelNotFound:
    """The error of a name that nothing here has; it lists those that are served."""
    return ModelNotFound(
        f"There is no model {name[:MAX_SHOWN]!r} here. Served: {', '.join(served)}.", param="model"
    )


def _check_route(route: RouteSettings, where: str, pools: Sequence[PoolFacts]) -> None:
    known = [pool.names[0] for pool in pools]
    kinds = [bool(route.pool), bool(route.versions), route.cascade is not None]
    if sum(kinds) != 1:
        raise InvalidSetting(where, "needs exactly one of pool, versions and cascade")
    if route.pool:
        check_pool(route.pool, f"{where}.pool", known)
    for version, pool in route.versions.items():
        if not NAME.fullmatch(version):
            raise InvalidSetting(f"{where}.versions", f"{version!r} is no name of a version")
        check_pool(pool, f"{where}.versions.{version}", known)
    if route.versions and STABLE not in route.versions:
        raise InvalidSetting(f"{where}.versions", f"needs {STABLE!r} among the versions")
    if route.cascade is not None:
        _check_cascade(route.cascade, f"{where}.cascade", pools)
    if route.split:
        _check_split(route, f"{where}.split")


def _check_cascade(cascade: CascadeSettings, where: str, pools: Sequence[PoolFacts]) -> None:
    known = [pool.names[0] for pool in pools]
    check_pool(cascade.first, f"{where}.first", known)
    check_pool(cascade.then, f"{where}.then", known)
    if cascade.first == cascade.then:
        raise InvalidSetting(f"{where}.then", f"must differ from first, got {cascade.then!r} twice")
    if not next(pool.has_logprobs for pool in pools if pool.names[0] == cascade.first):
        raise InvalidSetting(
            f"{where}.first",
            f"{cascade.first!r} is answered by a server that is not known to give "
            f"log-probabilities, by which the first answer is judged; if it does, set its "
            f"upstream.logprobs: true",
        )
    if not -100.0 <= cascade.min_mean_logprob <= 0.0:
        raise InvalidSetting(
            f"{where}.min_mean_logprob", f"must be -100 to 0, got {cascade.min_mean_logprob:g}"
        )


def _check_split(route: RouteSettings, where: str) -> None:
    for version, weight in route.split.items():
        if version not in route.versions:
            raise InvalidSetting(
                f"{where}.{version}",
                f"is no version of {route.name!r}; it has {_listed(route.versions)}",
            )
        if not math.isfinite(weight) or weight < 0:
            raise InvalidSetting(f"{where}.{version}", f"must be a weight >= 0, got {weight:g}")
    if not any(route.split.values()):
        raise InvalidSetting(where, "every weight is 0, so that nobody would answer")


def _check_auto(auto: AutoSettings, known: Sequence[str]) -> None:
    for field in ("small", "medium", "large"):
        check_pool(getattr(auto, field), f"routes.auto.{field}", known)
    for kind, pool in auto.special.items():
        if kind not in SPECIAL:
            raise InvalidSetting("routes.auto.special", f"{kind!r} is none of {_listed(SPECIAL)}")
        check_pool(pool, f"routes.auto.special.{kind}", known)
    if not 0.0 < auto.confidence < 1.0:
        raise InvalidSetting(
            "routes.auto.confidence", f"must be between 0 and 1, got {auto.confidence:g}"
        )
    if not auto.medium_from <= auto.large_from:
        raise InvalidSetting(
            "routes.auto.large_from",
            f"must be at least medium_from ({auto.medium_from:g}), got {auto.large_from:g}",
        )
    for field in ("long_prompt_chars", "long_answer_tokens"):
        if getattr(auto, field) < 1:
            raise InvalidSetting(
                f"routes.auto.{field}", f"must be at least 1, got {getattr(auto, field)}"
            )


def _check_names(
    names: Mapping[str, str],
    route: str,
    own: Sequence[str],
    pools: Sequence[PoolFacts],
    taken: dict[str, str],
) -> None:
    """No name twice; that of a pool only for a route that leads to this pool.

    names  by where each stands; `own` are the pools that the route leads to
    """
    of_pools = {name: pool.names[0] for pool in pools for name in pool.names}
    for where, name in names.items():
        if not NAME.fullmatch(name):
            raise InvalidSetting(
                where,
                f"{name!r} must be 1 to 128 characters A-Z a-z 0-9 . _ : / -, and begin with a "
                f"letter or digit",
            )
        if name in taken:
            raise InvalidSetting(where, f"{name!r} is a name of {taken[name]} too")
        if name in of_pools and of_pools[name] not in own:
            raise InvalidSetting(
                where, f"{name!r} is a pool's name, and the route does not lead there"
            )
        taken[name] = route


def check_pool(pool: str, where: str, known: Sequence[str]) -> None:
    """Raise InvalidSetting for a pool that there is not."""
    if pool not in known:
        raise InvalidSetting(where, f"there is no pool {pool!r}; there are {_listed(known)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
