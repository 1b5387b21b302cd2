"""Who waits for a place at another server, in which order, and who is refused for time."""

from collections.abc import Sequence
from typing import Any

import pytest

from headway.core.base.errors import DeadlineUnmeetable, QueueFull
from headway.core.base.units import Seconds
from headway.core.route.upstream_line import Newcomer, Place, UpstreamLine
from headway.core.tenancy.tenant import SloClass

VIP, STANDARD, INTERNAL = SloClass
ZERO = Seconds(0.0)


def line(max_waiting: int = 64, ageing: float = 30.0) -> UpstreamLine:
    return UpstreamLine(max_waiting, Seconds(ageing))


def waits(to: UpstreamLine, now: float = 0.0, **fields: Any) -> Place:
    place = to.enter(Newcomer(**fields), Seconds(now))
    to.join(place, Seconds(now))
    return place


def served(by: UpstreamLine, now: float = 0.0) -> list[Place]:
    """All that wait, in the order in which they get a place that is at once free again."""
    order = []
    while (place := by.first(Seconds(now))) is not None:
        by.leave(place)
        by.took(place, Seconds(now), is_full=True)
        by.ended(place, Seconds(now), 0)
        order.append(place)
    return order


def slow_server(seconds: float, count: int = 20, slo_class: int = STANDARD) -> UpstreamLine:
    """A line whose one place was taken for so long by each of some requests of 10 tokens."""
    made = line()
    for turn in range(count):
        at = Seconds(turn * seconds)
        place = made.enter(Newcomer(tokens=10, slo_class=slo_class), at)
        made.took(place, at, is_full=True)
        made.ended(place, Seconds(at + seconds), 5)
    return made


def test_more_important_classes_go_first_whenever_they_came() -> None:
    made = line()
    last = waits(made, slo_class=INTERNAL)
    then = waits(made, slo_class=STANDARD)
    first = waits(made, slo_class=VIP)
    assert served(made) == [first, then, last]


def test_who_has_waited_long_is_lifted_by_a_class() -> None:
    made = line(ageing=10.0)
    old = waits(made, 0.0, slo_class=INTERNAL)
    new = waits(made, 11.0, slo_class=STANDARD, tokens=100_000)
    assert made.first(Seconds(9.0)) is new
    made.took(new, Seconds(9.0), is_full=True)  # what was served to it counts
    assert made.first(Seconds(11.0)) is old


@pytest.mark.parametrize(("weight", "share"), [(1.0, 4), (3.0, 6)])
def test_tenants_of_a_class_share_by_their_weights(weight: float, share: int) -> None:
    made = line()
    for _ in range(12):
        waits(made, tenant="greedy", weight=weight, tokens=50)
    for _ in range(12):
        waits(made, tenant="modest", weight=1.0, tokens=50)
    first = [place.group.request.tenant for place in served(made)[:8]]
    assert first.count("greedy") == share


def test_an_answer_s_tokens_are_charged_to_its_tenant_too() -> None:
    made = line()
    ran = made.enter(Newcomer(tenant="wordy", tokens=10), ZERO)
    made.took(ran, ZERO, is_full=False)
    waits(made, tenant="wordy", tokens=10)
    brief = waits(made, tenant="brief", tokens=10)
    made.ended(ran, Seconds(1.0), 1000)
    assert made.first(Seconds(1.0)) is brief


def test_within_a_tenant_the_earliest_deadline_goes_first() -> None:
    made = line()
    late = waits(made, budget_s=9.0)
    soon = waits(made, budget_s=2.0)
    never = waits(made)
    assert served(made) == [soon, late, never]


def test_best_effort_never_fills_the_line_for_others() -> None:
    made = line(max_waiting=2)
    for _ in range(2):
        waits(made, slo_class=INTERNAL)
    with pytest.raises(QueueFull) as refused:
        waits(made, slo_class=INTERNAL)
    assert refused.value.retry_after_s >= 1.0
    waits(made, slo_class=STANDARD)
    assert len(made) == 3


def test_who_would_be_too_late_is_refused_at_the_door_with_a_time() -> None:
    made = slow_server(1.0)
    waits(made, 20.0, budget_s=5.0, tokens=10)  # at one a second
    for _ in range(4):
        waits(made, 20.0, slo_class=VIP, tokens=10)
    with pytest.raises(DeadlineUnmeetable, match="promised within 5 s") as refused:
        waits(made, 20.0, budget_s=5.0, tokens=10)
    assert refused.value.retry_after_s >= 1.0
    waits(made, 20.0, slo_class=INTERNAL)  # nothing is promised, nobody is refused for it


def test_what_was_never_measured_refuses_nobody() -> None:
    made = line()
    for _ in range(20):
        waits(made, budget_s=0.5)
    assert len(made) == 20


def test_a_place_that_is_free_is_no_measure_of_speed() -> None:
    made = line()
    for turn in range(20):
        place = made.enter(Newcomer(tokens=10), Seconds(float(turn)))
        made.took(place, Seconds(float(turn)), is_full=False)
        made.ended(place, Seconds(turn + 1.0), 5)
    for _ in range(20):
        waits(made, 20.0, budget_s=3.0)
    assert made.wait(STANDARD) == 0.0


@pytest.mark.parametrize(
    ("first_tokens", "patience"), [((), 3.0), ((1.0, 1.0), 2.0), ((2.9,), 1.5)]
)
def test_patience_leaves_the_server_its_time_and_never_less_than_half(
    first_tokens: Sequence[float], patience: float
) -> None:
    made = line()
    for took in first_tokens:
        made.began(took)
    place = waits(made, 5.0, budget_s=3.0)
    assert made.patience(place, Seconds(5.0)) == pytest.approx(patience)
    assert made.patience(place, Seconds(9.0)) == 0.0
    assert made.patience(waits(made, 5.0), Seconds(5.0)) is None


def test_the_expected_wait_is_that_of_the_line_and_none_without_one() -> None:
    made = slow_server(1.0)
    assert made.wait(STANDARD) == 0.0
    for _ in range(4):
        waits(made, 20.0)
    assert made.wait(STANDARD) == pytest.approx(5.0, rel=0.2)
