import pytest

from headway.core.base.units import Seconds
from headway.core.route.breaker import Breaker, BreakerSettings, BreakerState

NOW = Seconds(100.0)


def ejected(settings: BreakerSettings | None = None) -> Breaker:
    breaker = Breaker(settings)
    for _ in range(3):
        breaker.failed(NOW)
    return breaker


def test_failures_in_a_row_eject() -> None:
    breaker = Breaker()
    for _ in range(2):
        breaker.failed(NOW)
        breaker.failed(NOW)
        breaker.succeeded(NOW)
    assert breaker.state(NOW) is BreakerState.CLOSED
    assert ejected().is_ejected(NOW)
    assert not ejected().may_take(0, NOW)


def test_half_of_the_last_results_failed_eject_too() -> None:
    breaker = Breaker(BreakerSettings(window=10))
    for _ in range(5):
        assert not breaker.is_ejected(NOW)
        breaker.succeeded(NOW)
        breaker.failed(NOW)
    assert breaker.is_ejected(NOW)


def test_it_comes_back_step_by_step() -> None:
    breaker = ejected(BreakerSettings(return_limit=4))
    assert breaker.back_at(NOW) == 1.0
    later = Seconds(NOW + 1.0)
    assert breaker.state(later) is BreakerState.RETURNING
    assert breaker.back_at(later) == 0.0
    allowed = []
    while breaker.state(later) is BreakerState.RETURNING:
        allowed.append(sum(breaker.may_take(each, later) for each in range(20)))
        breaker.succeeded(later)
    assert allowed == [1, 2, 4]
    assert breaker.may_take(1000, later)


def test_each_further_pause_is_twice_as_long_up_to_a_limit() -> None:
    breaker, now, pauses = ejected(BreakerSettings(pause_limit_s=5.0)), NOW, []
    for _ in range(4):
        pauses.append(breaker.back_at(now))
        now = Seconds(now + breaker.back_at(now))
        breaker.failed(now)
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 5.0])


def test_once_well_the_next_pause_is_the_first_again() -> None:
    breaker = ejected(BreakerSettings(return_limit=1))
    now = Seconds(NOW + 1.0)
    breaker.succeeded(now)
    assert breaker.state(now) is BreakerState.CLOSED
    for _ in range(3):
        breaker.failed(now)
    assert breaker.back_at(now) == 1.0


def test_results_of_before_change_nothing_while_it_is_ejected() -> None:
    breaker = ejected()
    breaker.succeeded(NOW)
    breaker.failed(NOW)
    breaker.restarted(NOW)
    assert breaker.back_at(NOW) == 1.0


def test_one_that_was_restarted_comes_back_step_by_step_at_once() -> None:
    breaker = Breaker()
    breaker.restarted(NOW)
    assert breaker.state(NOW) is BreakerState.RETURNING
    assert breaker.may_take(0, NOW)
    assert not breaker.may_take(1, NOW)
