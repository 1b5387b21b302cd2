"""Which limits can be counted."""

import pytest

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.limits import BOUNDS, Limits, check_limits


def test_no_limits_and_the_highest_ones_can_be_counted() -> None:
    check_limits(Limits(), "x")
    check_limits(Limits(**BOUNDS), "x")
    check_limits(Limits(requests_per_minute=0), "x")
    assert set(BOUNDS) == set(Limits.__struct_fields__)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("which", ["negative", "too high"])
def test_other_limits_are_refused_by_name(name: str, which: str) -> None:
    value = -1 if which == "negative" else BOUNDS[name] + 1
    with pytest.raises(InvalidSetting, match=rf"tenants\.acme\.{name}: .*{value}"):
        check_limits(Limits(**{name: value}), "tenants.acme")
