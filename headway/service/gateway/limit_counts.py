"""What is measured of tenants' limits."""

from collections.abc import Iterator
from typing import Protocol

from headway.core.tenancy.limits import LimitKind
from headway.core.tenancy.metrics import (
    LIMIT_DEGRADED,
    LIMIT_DENIALS,
    LIMIT_STORE_UP,
    TENANT_DENIALS,
)
from headway.core.tenancy.tenant import Tenant
from headway.service.gateway.limit_settings import LimitTable
from headway.service.observe.prometheus import Exporter, Sample


class SharedState(Protocol):
    """How it goes with a store that several gateways share."""

    num_degraded: int  # answers given without it

    @property
    def is_up(self) -> bool:
        """Whether it counts now."""
        ...


class Denials:
    """Counts refusals into the exporter."""

    def __init__(self, exporter: Exporter, table: LimitTable) -> None:
        self._exporter = exporter
        self._table = table

    def count(self, tenant: Tenant, kind: LimitKind) -> None:
        """One request of this tenant was refused."""
        slo_class = tenant.slo_class.name.lower()
        self._exporter.add(LIMIT_DENIALS, slo_class=slo_class, kind=kind.value)
        if self._table.settings.metrics_by_tenant:
            self._exporter.add(TENANT_DENIALS, tenant=tenant.name, kind=kind.value)


def samples(state: SharedState) -> Iterator[Sample]:
    """A source of the exporter."""
    yield Sample(LIMIT_STORE_UP, float(state.is_up))
    yield Sample(LIMIT_DEGRADED, float(state.num_degraded))
