from headway.core.base.units import Seconds
from headway.core.route.retry import RetryBudget, RetrySettings, Tries


def test_retries_are_a_share_of_the_requests_of_the_last_minute() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, least=0))
    for second in range(50):
        budget.came(Seconds(second))
    assert [budget.take(Seconds(50.0)) for _ in range(12)].count(True) == 10
    assert not budget.take(Seconds(100.0)), "of 10 requests, and 10 retries were made"
    assert not budget.take(Seconds(500.0)), "nothing came lately"


def test_what_one_dead_replica_had_waiting_is_always_tried_again() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, least=3))
    assert [budget.take(Seconds(0.0)) for _ in range(4)] == [True, True, True, False]
    assert budget.take(Seconds(61.0)), "a minute later"


def test_a_request_that_has_begun_goes_on_without_a_budget() -> None:
    tries = Tries(RetryBudget(RetrySettings(share=0.0, least=0)))
    assert not tries.may_go_on(Seconds(0.0))
    tries.gained()
    assert tries.may_go_on(Seconds(0.0))
    assert tries.count == 1


def test_a_request_that_replicas_fail_in_a_row_is_given_up() -> None:
    tries = Tries(RetryBudget(RetrySettings(in_a_row=2)))
    assert [tries.may_go_on(Seconds(0.0)) for _ in range(3)] == [True, True, False]
    tries.gained()
    assert tries.may_go_on(Seconds(0.0)), "it had got on since"
