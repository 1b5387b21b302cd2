"""Measured rates, and the wait that follows from them."""

import pytest

from headway.core.base.units import Seconds
from headway.core.sched.deadline import (
    MAX_RETRY,
    MIN_RETRY,
    PRUDENCE,
    Ahead,
    Forecast,
    StepFacts,
    retry_after,
)
from tests.mixed import INTERNAL, STANDARD, VIP


def measured(
    *tokens: int, seconds: float = 0.1, ended: int = 0, full: bool = False, steps: int = 100
) -> Forecast:
    """A forecast after some steps that each computed so many prompt tokens, a class."""
    forecast = Forecast()
    for i in range(steps):
        facts = StepFacts(tokens, ended, full, seconds)
        forecast.took_step(facts, Seconds(seconds * (i + 1)))
    return forecast


def test_what_was_never_measured_refuses_nobody() -> None:
    forecast = Forecast()
    ahead = Ahead(10**6, 1000, 0)
    assert forecast.prefill_rate is None
    assert forecast.wait(ahead, STANDARD) == 0.0
    assert forecast.excess(ahead, STANDARD, 100, 0.5) == 0.0


def test_the_wait_is_the_tokens_ahead_over_the_measured_rate() -> None:
    forecast = measured(0, 100, 0)
    assert forecast.prefill_rate == pytest.approx(1000.0)
    assert forecast.wait(Ahead(2000, 0, 1), STANDARD) == pytest.approx(2.0)


def test_steps_without_prompts_do_not_lower_the_rate() -> None:
    forecast = measured(0, 100, 0)
    for i in range(100):
        forecast.took_step(StepFacts((0, 0, 0), 0, False, 0.1), Seconds(10.1 + i / 10))
    assert forecast.prefill_rate == pytest.approx(1000.0)


def test_without_a_slot_the_wait_goes_by_how_fast_sequences_end() -> None:
    forecast = measured(0, 100, 0, ended=1, full=True)
    assert forecast.end_rate == pytest.approx(10.0)
    assert forecast.wait(Ahead(100, 19, 0), STANDARD) == pytest.approx(2.0)
    assert forecast.wait(Ahead(100, 19, 20), STANDARD) == pytest.approx(0.1)


def test_what_more_important_classes_take_is_not_there_for_others() -> None:
    forecast = measured(75, 25, 0)
    ahead = Ahead(1000, 0, 1)
    assert forecast.wait(ahead, VIP) == pytest.approx(1.0)
    assert forecast.wait(ahead, STANDARD) == pytest.approx(4.0, rel=0.05)
    alone = ahead._replace(is_contended=False)
    assert forecast.wait(alone, STANDARD) == pytest.approx(1.0), "they have gone"


def test_of_the_slots_that_come_free_more_important_classes_take_their_share() -> None:
    forecast = measured(40, 40, 20, ended=1, full=True)
    ahead = Ahead(0, 19, 0)
    assert forecast.wait(ahead, VIP) == pytest.approx(2.0)
    assert forecast.wait(ahead, STANDARD) == pytest.approx(2.0 / 0.6)
    assert forecast.wait(ahead, INTERNAL) == pytest.approx(2.0 / 0.2)


def test_a_quiet_hour_of_vips_leaves_the_capacity_to_the_others() -> None:
    forecast = Forecast()
    for i in range(20):  # all the prompts there were, but one step a second
        forecast.took_step(StepFacts((100, 0, 0), 0, False, 0.1), Seconds(float(i)))
    assert forecast.wait(Ahead(1000, 0, 1), STANDARD) == pytest.approx(1.1, rel=0.1)


def test_rates_follow_a_change_within_seconds() -> None:
    forecast = measured(0, 100, 0)
    for i in range(300):
        forecast.took_step(StepFacts((0, 20, 0), 0, False, 0.1), Seconds(10.1 + i / 10))
    assert forecast.prefill_rate == pytest.approx(200.0, rel=0.3)


def test_the_excess_is_over_what_the_promise_leaves_for_waiting() -> None:
    forecast = measured(0, 100, 0)
    assert forecast.excess(Ahead(900, 1, 1), STANDARD, 500, 3.0) == 0.0
    assert forecast.excess(Ahead(4000, 1, 1), STANDARD, 500, 3.0) == pytest.approx(
        4.0 - PRUDENCE * 2.5
    )


def test_a_prompt_is_never_refused_for_its_own_length() -> None:
    forecast = measured(0, 100, 0)
    assert forecast.excess(Ahead(0, 0, 1), STANDARD, 10**6, 3.0) == 0.0
    assert forecast.excess(Ahead(500, 1, 1), STANDARD, 10**6, 3.0) == 0.0


def test_a_vip_is_refused_only_when_more_vips_come_than_fit() -> None:
    ahead = Ahead(3000, 3, 1)
    forecast = measured(100, 0, 0)
    forecast.offered(VIP, 4000, Seconds(10.0))
    assert forecast.excess(ahead, VIP, 100, 0.5) == 0.0
    for i in range(20):
        forecast.offered(VIP, 1500, Seconds(10.0 + i))
    assert forecast.excess(ahead, VIP, 100, 0.5) > 0.0


def test_best_effort_waits_for_everybody() -> None:
    forecast = measured(40, 55, 5)
    ahead = Ahead(1000, 0, 1)
    assert forecast.wait(ahead, INTERNAL) > 5 * forecast.wait(ahead, VIP)


def test_the_time_to_come_again_is_bounded() -> None:
    assert retry_after(Seconds(0.0)) == MIN_RETRY
    assert retry_after(Seconds(7.5)) == 7.5
    assert retry_after(Seconds(1e9)) == MAX_RETRY
