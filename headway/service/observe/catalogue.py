"""Every metric that a server may show, of all parts."""

from headway.core.base.metrics import CATALOGUE, Metric
from headway.core.fleet.metrics import FLEET_CATALOGUE
from headway.core.fleet.reload_metrics import RELOAD_CATALOGUE
from headway.core.route.metrics import ROUTE_CATALOGUE
from headway.core.route.routing_metrics import ROUTING_CATALOGUE
from headway.core.route.upstream_metrics import UPSTREAM_CATALOGUE
from headway.core.tenancy.account_metrics import ACCOUNT_CATALOGUE
from headway.core.tenancy.ledger_metrics import LEDGER_CATALOGUE
from headway.core.tenancy.metrics import CLASS_CATALOGUE, LIMIT_CATALOGUE

EVERYTHING: tuple[Metric, ...] = (
    *CATALOGUE,
    *CLASS_CATALOGUE,
    *LIMIT_CATALOGUE,
    *FLEET_CATALOGUE,
    *RELOAD_CATALOGUE,
    *ROUTE_CATALOGUE,
    *ROUTING_CATALOGUE,
    *UPSTREAM_CATALOGUE,
    *ACCOUNT_CATALOGUE,
    *LEDGER_CATALOGUE,
)
