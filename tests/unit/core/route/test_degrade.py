"""When a pool counts as congested, and for how long."""

from typing import Any

import msgspec
import pytest

from headway.core.base.errors import InvalidSetting
from headway.core.base.units import Seconds
from headway.core.route.degrade import (
    Congestion,
    DegradeSettings,
    PoolState,
    chain,
    check_degrade,
)
from headway.core.tenancy.tenant import SloClass

TARGETS = {SloClass.VIP: Seconds(0.5), SloClass.STANDARD: Seconds(3.0)}
STANDARD, INTERNAL = SloClass.STANDARD, SloClass.INTERNAL


def congestion(**fields: Any) -> Congestion:
    return Congestion(msgspec.convert(fields, DegradeSettings), TARGETS)


@pytest.mark.parametrize(
    ("state", "slo_class", "expected"),
    [
        (PoolState(wait_s=1.5), STANDARD, 0.5),
        (PoolState(wait_s=1.5), SloClass.VIP, 3.0),
        (PoolState(wait_s=99.0, best_effort_wait_s=4.0), INTERNAL, 0.4),
        (PoolState(queue_share=0.4), STANDARD, 0.5),
        (PoolState(rung=1), STANDARD, 0.0),
        (PoolState(rung=2), STANDARD, 1.0),
    ],
)
def test_pressure_is_the_nearest_to_its_threshold(
    state: PoolState, slo_class: SloClass, expected: float
) -> None:
    assert congestion().pressure(state, slo_class) == pytest.approx(expected)


@pytest.mark.spec("B4")
def test_a_pool_is_congested_until_it_has_been_well_below_its_threshold_for_a_while() -> None:
    watched = congestion(leave_below=0.7, hold_s=5.0)

    def look(wait_s: float, now: float) -> bool:
        return watched.is_congested("large", PoolState(wait_s=wait_s), STANDARD, Seconds(now))

    assert not look(2.9, 0.0)
    assert look(3.0, 1.0)
    assert look(2.5, 5.0)  # below the threshold, and not well below
    assert look(0.0, 9.9)  # well below, and not for long enough
    assert watched.congested(Seconds(9.9)) == {("large", STANDARD)}
    assert not look(0.0, 10.0)
    assert watched.congested(Seconds(10.0)) == frozenset()
    assert not look(2.5, 11.0)  # from below, this is not congested


def test_classes_and_pools_are_judged_apart() -> None:
    watched = congestion()
    busy = PoolState(wait_s=1.0)
    assert watched.is_congested("a", busy, SloClass.VIP, Seconds(0.0))
    assert not watched.is_congested("a", busy, STANDARD, Seconds(0.0))
    assert not watched.is_congested("b", PoolState(), SloClass.VIP, Seconds(0.0))


def test_vip_requests_are_degraded_only_where_that_is_set() -> None:
    assert not congestion().may_degrade(SloClass.VIP)
    assert congestion().may_degrade(INTERNAL)
    assert congestion(classes=["vip"]).may_degrade(SloClass.VIP)


def test_helpers_are_followed_to_the_end() -> None:
    smaller = {"large": "medium", "medium": "small"}
    assert chain(smaller, "large") == ("medium", "small")
    assert chain(smaller, "small") == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"classes": ["gold"]}, "routes.degrade.classes: 'gold' is none of vip"),
        ({"smaller": {"a": "z"}}, "routes.degrade.smaller.a: there is no pool 'z'"),
        ({"smaller": {"a": "b", "b": "a"}}, "routes.degrade.smaller.a: 'a' comes back to itself"),
        ({"queue_share": 0}, "routes.degrade.queue_share: must be above 0"),
        ({"leave_below": 1.5}, "routes.degrade.leave_below: must be above 0 and at most 1"),
        ({"max_tokens": 0}, "routes.degrade.max_tokens: must be at least 1"),
        ({"rung": 0}, "routes.degrade.rung: must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_degrade(msgspec.convert(fields, DegradeSettings), ["a", "b"])
    assert caught.value.message.startswith(said)
