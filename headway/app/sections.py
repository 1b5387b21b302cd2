"""The parts of a configuration file that are more than one value: tenants, routes, prices, limits.

Each is a struct of the part that it configures; here they are read together and checked as a whole
against the models, so that a file is right or refused with its line before anything starts.
"""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TypeVar

import msgspec

from headway.app.document import Document, read_document
from headway.core.base.errors import InvalidSetting
from headway.core.route.table import PoolFacts, RoutesSettings, names_of
from headway.core.route.table import check as check_routes
from headway.core.tenancy.limits import UNLIMITED, Limits, check_limits
from headway.core.tenancy.price import PriceSettings, check_prices
from headway.core.tenancy.tenant import TENANT_NAME, SloClass, Tenant, class_named
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.jwt_settings import check as check_jwt
from headway.service.gateway.limit_settings import RateLimitSettings, check_rate_limits

RATE_LIMITS = "rate_limits"
T = TypeVar("T")


class TenantEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"slo_class": "class"},
):
    """One tenant of the file; those of the database are beside them."""

    name: str
    slo_class: str = "standard"
    weight: float = 1.0
    limits: Limits = UNLIMITED
    models: tuple[str, ...] = ()  # names of routes and models that it may use; empty: all
    may_degrade: bool = True
    keys: tuple[str, ...] = ()  # as they are; better kept out of the file:
    keys_env: tuple[str, ...] = ()  # environment variables with a key each

    def tenant(self) -> Tenant:
        """As the gateway knows it."""
        return Tenant(
            name=self.name,
            slo_class=class_named(self.slo_class),
            weight=self.weight,
            limits=self.limits,
            models=self.models,
            may_degrade=self.may_degrade,
        )


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """All of them; each has a default, as a server without a file."""

    tenants: tuple[TenantEntry, ...] = ()
    routes: RoutesSettings | None = None
    prices: PriceSettings = PriceSettings()
    rate_limits: RateLimitSettings = RateLimitSettings()
    jwt: JwtSettings | None = None


NOTHING = Sections()


def read_sections(document: Document) -> Sections:
    """Take them out of a file, each checked by itself; raises InvalidSetting with its line."""
    found = Sections(
        tenants=document.convert("tenants", tuple[TenantEntry, ...])
        if "tenants" in document.content
        else (),
        routes=_optional(document, "routes", RoutesSettings),
        prices=document.convert("prices", PriceSettings),
        rate_limits=document.convert(RATE_LIMITS, RateLimitSettings),
        jwt=_optional(document, "jwt", JwtSettings),
    )
    placed(document, lambda: check_prices(found.prices))
    placed(document, lambda: check_rate_limits(found.rate_limits))
    placed(document, lambda: _check_tenants(found.tenants))
    if (jwt := found.jwt) is not None:
        placed(document, lambda: check_jwt(jwt))
    return found


def check_against(
    pools: Sequence[PoolFacts],
    routes: RoutesSettings | None,
    prices: PriceSettings,
    file: str,
    tenants: Sequence[TenantEntry] = (),
) -> None:
    """Raise InvalidSetting, with the line in the file, where a section names what is not there."""
    known = {name for pool in pools for name in pool.names}

    def check() -> None:
        _check_own_names(pools)
        if routes is not None:
            check_routes(routes, pools)
        _check_priced(pools, prices)
        _check_models(tenants, known | (set() if routes is None else set(names_of(routes))))

    with_line(file, check)


def keys_of(
    tenants: Sequence[TenantEntry], environment: Mapping[str, str] = os.environ
) -> list[tuple[str, Tenant]]:
    """Every key and whose it is; raises InvalidSetting, which never repeats a key."""
    found: dict[str, Tenant] = {}
    for index, entry in enumerate(tenants):
        own = {f"tenants[{index}].keys[{i}]": key for i, key in enumerate(entry.keys)}
        for i, variable in enumerate(entry.keys_env):
            where = f"tenants[{index}].keys_env[{i}]"
            if not environment.get(variable, "").strip():
                raise InvalidSetting(where, f"{variable} is not set, or empty")
            own[where] = environment[variable]
        for where, text in own.items():
            key = text.strip()  # as a header has it
            if not (key.isascii() and key.isprintable()):
                raise InvalidSetting(
                    where, "is a key that no header can carry; use printable ASCII characters"
                )
            if found.setdefault(key, entry.tenant()).name != entry.name:
                raise InvalidSetting(where, "is a key of another tenant too")
    return list(found.items())


def with_line(file: str, work: Callable[[], T]) -> T:
    """What `work` gives; its error gets the line in the file, if the field stands there."""
    try:
        return work()
    except InvalidSetting as error:
        if not file:
            raise
        raise _with_line(read_document(Path(file)), error) from None


def placed(document: Document, check: Callable[[], None]) -> None:
    """Run a check; its error gets the file and the line of the field that it names."""
    try:
        check()
    except InvalidSetting as error:
        raise _with_line(document, error) from None


def _with_line(document: Document, error: InvalidSetting) -> InvalidSetting:
    field = error.param or ""
    problem = error.message.removeprefix(f"{field}: ")
    if field.startswith("--"):
        field = field.removeprefix("--").replace("-", "_")
        if field not in document.content:
            return error  # it was a flag, or stands in the environment
    return InvalidSetting(document.where(*document.place_of(field)), problem)


def _optional(document: Document, name: str, kind: type[T]) -> T | None:
    return document.convert(name, kind) if name in document.content else None


def _check_tenants(tenants: Sequence[TenantEntry]) -> None:
    names: set[str] = set()
    for index, entry in enumerate(tenants):
        where = f"tenants[{index}]"
        if not TENANT_NAME.fullmatch(entry.name):
            raise InvalidSetting(
                f"{where}.name",
                f"must be 1 to 64 characters A-Z a-z 0-9 . _ -, got {entry.name[:80]!r}",
            )
        if entry.name in names:
            raise InvalidSetting(f"{where}.name", f"{entry.name!r} is there twice")
        names.add(entry.name)
        if entry.slo_class not in {each.name.lower() for each in SloClass}:
            known = ", ".join(each.name.lower() for each in SloClass)
            raise InvalidSetting(
                f"{where}.class", f"must be one of {known}; got {entry.slo_class[:80]!r}"
            )
        if not 0.001 <= entry.weight <= 1000:
            raise InvalidSetting(f"{where}.weight", f"must be 0.001 to 1000, got {entry.weight:g}")
        check_limits(entry.limits, f"{where}.limits")
        for place, key in enumerate(entry.keys):
            if not key.strip():
                raise InvalidSetting(f"{where}.keys[{place}]", "must not be empty")


def _check_own_names(pools: Sequence[PoolFacts]) -> None:
    """No name is that of two models."""
    taken: dict[str, int] = {}
    for index, pool in enumerate(pools):
        for name in pool.names:
            if taken.setdefault(name, index) != index:
                raise InvalidSetting(
                    f"models[{index}]",
                    f"its name {name!r} is one of models[{taken[name]}] too; give each its own",
                )


def _check_priced(pools: Sequence[PoolFacts], prices: PriceSettings) -> None:
    """A price under a name that nobody looks under would cost nothing."""
    first = {name: pool.names[0] for pool in pools for name in pool.names}
    for name in prices.models:
        if name not in first:
            known = ", ".join(sorted(pool.names[0] for pool in pools))
            raise InvalidSetting(
                f"prices.models.{name}", f"is the name of no model; there are {known}"
            )
        if first[name] != name:
            raise InvalidSetting(
                f"prices.models.{name}",
                f"is another name of {first[name]!r}; a price stands under a model's first name",
            )


def _check_models(tenants: Sequence[TenantEntry], known: Set[str]) -> None:
    """A tenant with a misspelt model could use none, and nobody would know why."""
    for index, entry in enumerate(tenants):
        for place, name in enumerate(entry.models):
            if name not in known:
                raise InvalidSetting(
                    f"tenants[{index}].models[{place}]",
                    f"{name[:80]!r} is no name of a route or model; there are "
                    f"{', '.join(sorted(known))}",
                )
