"""What is measured of limits that gateways share."""

from headway.core.tenancy.limits import LimitKind
from headway.core.tenancy.metrics import LIMIT_CATALOGUE
from headway.core.tenancy.tenant import SloClass, Tenant
from headway.service.gateway.limit_counts import Denials, samples
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.observe.prometheus import Exporter


class State:
    """As told."""

    def __init__(self) -> None:
        self.is_up = True
        self.num_degraded = 0


def test_the_state_of_the_store_is_read_at_every_scrape() -> None:
    state, exporter = State(), Exporter(LIMIT_CATALOGUE, {})
    exporter.add_source(lambda: samples(state))
    assert b"headway_limit_store_up 1.0" in exporter.render(None)[0]
    state.is_up, state.num_degraded = False, 7
    text = exporter.render(None)[0]
    assert b"headway_limit_store_up 0.0" in text
    assert b"headway_limit_degraded_answers_total 7.0" in text


def test_tenants_are_named_only_where_that_was_asked_for() -> None:
    acme = Tenant(name="acme", slo_class=SloClass.VIP)
    for by_tenant in (False, True):
        settings = RateLimitSettings(metrics_by_tenant=by_tenant)
        exporter = Exporter(LIMIT_CATALOGUE, {})
        Denials(exporter, LimitTable(settings)).count(acme, LimitKind.BUDGET)
        text = exporter.render(None)[0]
        assert b'headway_limit_denials_total{kind="budget",slo_class="vip"} 1.0' in text
        assert (b"acme" in text) == by_tenant
