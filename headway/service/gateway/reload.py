"""What a gateway may be told anew while it runs: models, routes, tenants and keys, limits."""

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.route.table import RoutesSettings
from headway.core.tenancy.tenant import Tenant
from headway.service.gateway.auth import KeyRing
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.models import Models
from headway.service.gateway.plan import Plan
from headway.service.gateway.route_parts import make_chooser, make_table
from headway.service.gateway.routing import Routing
from headway.service.gateway.serving import AnyNeeds, Serving


class Change(NamedTuple):
    """The configuration as it is from now on, all of it checked."""

    api_keys: Sequence[str]  # of nobody in particular
    keys: Sequence[tuple[str, Tenant]]  # of the settings and of the file
    tenants: Sequence[Tenant]  # also those without a key
    routes: RoutesSettings | None
    rate_limits: RateLimitSettings
    models: Sequence[AnyNeeds]  # all of them, ready to answer


class Reloadable(NamedTuple):
    """The parts that a change reaches; shared with the gateway that uses them."""

    keys: KeyRing
    known: dict[str, Tenant]  # tenants of the settings and of the file, by name
    limits: LimitTable
    models: Models
    routing: Routing
    serving: Serving
    slo_ttft: Sequence[str]

    def apply(self, change: Change) -> None:
        """Take it, for requests that come from now on; those under way end as they began.

        All that could fail is made first: raises StartError, and then nothing has changed.
        """
        table = make_table(change.routes, [each.facts for each in change.models])
        chooser = make_chooser(table, self.slo_ttft)
        served = [self.serving.of(each) for each in change.models]
        self.keys.replace(change.api_keys, change.keys)
        self.known.clear()
        self.known.update({tenant.name: tenant for tenant in change.tenants})
        self.limits.replace(change.rate_limits)
        self.models.replace(served, table)
        self.routing.replace(Plan(chooser, Models(served, table)))

    async def left(self, model: AnyNeeds) -> None:
        """Wait until no request can go to a model any more that the last change left out."""
        await self.routing.left(self.serving.of(model))
        self.serving.forget(model)
