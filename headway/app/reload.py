"""The configuration file read again, at SIGHUP: all of it is right and taken, or none of it.

A reload changes what is the gateway's alone: tenants and keys, routes, prices, limits. Models, and
the settings of the process, stay as they were started; a file in which those differ is refused as
a whole, so that nobody believes in a change that did not happen.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from headway.app.sections import TenantEntry, check_against, keys_of, with_line
from headway.app.settings import Settings
from headway.core.base.errors import InvalidSetting, StartError
from headway.core.tenancy.limits import UNLIMITED
from headway.core.tenancy.price import PriceSettings, PriceTable
from headway.core.tenancy.tenant import read_tenants
from headway.service.gateway.admin_keys import check_admin_keys
from headway.service.gateway.reload import Change, Reloadable

log = logging.getLogger(__name__)

Again = Callable[[], Sequence[Settings]]  # raises StartError


class Reloader:
    """Reads the settings again, and gives what changed to those who use it."""

    def __init__(
        self, began: Sequence[Settings], again: Again, gateway: Reloadable, prices: PriceTable
    ) -> None:
        """`began` are the settings of the start, a tree a model; `again` reads them anew."""
        self._began = tuple(began)
        self._again = again
        self._gateway = gateway
        self._prices = prices

    def reload(self) -> bool:
        """Take the file as it is now; False, with the reason in the log, if that cannot be."""
        try:
            settings = self._read()
            self._gateway.apply(_change(settings))
        except StartError as error:
            log.error("reload_refused", extra={"reason": error.message})
            return False
        self._prices.replace(settings.prices.models)
        log.info("reloaded", extra={"file": settings.file})
        return True

    def _read(self) -> Settings:
        """The settings of the server, checked; raises StartError."""
        models = tuple(self._again())
        settings = models[0]
        if len(models) != len(self._began):
            raise InvalidSetting(
                f"{settings.file}: models",
                f"are {len(models)} now and were {len(self._began)} at the start; a change of "
                f"models takes a restart",
            )
        for index, (old, new) in enumerate(zip(self._began, models, strict=True)):
            changed = differing(_started(old), _started(new))
            if changed:
                raise InvalidSetting(
                    f"{settings.file}: models[{index}]",
                    f"differs from the start in {', '.join(changed)}; that takes a restart",
                )
        check_against(
            self._gateway.pools, settings.routes, settings.prices, settings.file, settings.tenants
        )
        return settings


def differing(old: Settings, new: Settings) -> list[str]:
    """Names of the settings that are not the same, with their section."""
    found = []
    for name in Settings.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if not isinstance(before, msgspec.Struct) or type(before) is not type(after):
            found.append(name)
            continue
        fields = type(before).__struct_fields__
        found += [each for each in fields if getattr(before, each) != getattr(after, each)]
    return found


def _started(settings: Settings) -> Settings:
    """What only a start decides: the settings without what a reload may change."""
    limits = msgspec.structs.replace(
        settings.rate_limits, default=UNLIMITED, tenants={}, reserve_tokens=1
    )
    nobody: tuple[TenantEntry, ...] = ()
    return msgspec.structs.replace(
        settings, routes=None, prices=PriceSettings(), tenants=nobody, rate_limits=limits
    )


def _change(settings: Settings) -> Change:
    """What the gateway is told; raises InvalidSetting."""
    by_flag = read_tenants(settings.gateway.tenant)
    keys = [*by_flag, *with_line(settings.file, lambda: keys_of(settings.tenants))]
    check_admin_keys(
        settings.gateway.admin_key, [*settings.gateway.api_key, *(key for key, _ in keys)]
    )
    return Change(
        keys=keys,
        tenants=[*(tenant for _, tenant in by_flag), *(each.tenant() for each in settings.tenants)],
        routes=settings.routes,
        rate_limits=settings.rate_limits,
    )
