"""The section `rate_limits` of the configuration file."""

import msgspec
import pytest

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.limits import UNLIMITED, Limits
from headway.core.tenancy.tenant import Tenant
from headway.service.gateway.limit_settings import (
    LimitTable,
    RateLimitSettings,
    check_rate_limits,
)

FILE = {
    "default": {"requests_per_minute": 10},
    "tenants": {"acme": {"tokens_per_minute": 5}, "free": {}},
}


def read(**raw: object) -> RateLimitSettings:
    return msgspec.convert(raw, RateLimitSettings)


def test_a_tenants_own_limits_come_before_those_of_its_name_and_of_everybody() -> None:
    settings = read(**FILE)
    check_rate_limits(settings)
    own = Limits(requests_per_minute=1)
    table = LimitTable(settings)
    assert table.of(Tenant(name="acme", limits=own)) == own
    assert table.of(Tenant(name="acme")) == Limits(tokens_per_minute=5)
    assert table.of(Tenant(name="free")) == UNLIMITED
    assert table.of(Tenant()) == Limits(requests_per_minute=10)
    table.replace(RateLimitSettings())
    assert table.of(Tenant(name="acme")) == UNLIMITED


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"redis_timeout": 0.0}, "redis_timeout"),
        ({"outage_share": 1.5}, "outage_share"),
        ({"reserve_tokens": 0}, "reserve_tokens"),
        ({"default": {"requests_per_minute": 0}}, r"default\.requests_per_minute"),
        ({"tenants": {"a b": {}}}, "tenants"),
        ({"tenants": {"a": {"monthly_budget": -1}}}, r"tenants\.a\.monthly_budget"),
    ],
)
def test_what_cannot_be_is_refused_by_name(raw: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"rate_limits\.{field}"):
        check_rate_limits(read(**raw))
