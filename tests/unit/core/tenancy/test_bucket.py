"""A limit by the minute: nothing above it, nothing below it refused, and exact refunds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.tenancy import bucket as module
from headway.core.tenancy.bucket import HELD_MINUTES, MAX_LIMIT, MINUTE_MS, UNIT, Bucket


def filled(limit: int, count: int = 0, now_ms: int = 1000) -> Bucket:
    bucket = Bucket()
    bucket.drain(now_ms)
    bucket.set_limit(limit)
    if count:
        bucket.take(count)
    return bucket


def test_exactly_the_limit_fits_at_once() -> None:
    bucket = filled(3)
    for _ in range(3):
        assert bucket.wait_ms(1) == 0
        bucket.take(1)
    assert (bucket.wait_ms(1), bucket.left(), bucket.reset_ms()) == (20_000, 0, MINUTE_MS)


def test_after_the_wait_it_fits_and_a_millisecond_before_it_does_not() -> None:
    bucket = filled(7, 7)
    wait = bucket.wait_ms(2)
    assert wait == -(-2 * UNIT // 7)
    bucket.drain(1000 + wait - 1)
    assert bucket.wait_ms(2) == 1
    bucket.drain(1000 + wait)
    assert bucket.wait_ms(2) == 0


def test_more_than_the_limit_never_fits() -> None:
    assert filled(5).wait_ms(6) is None
    assert filled(5).wait_ms(5) == 0


def test_a_clock_that_goes_back_drains_nothing() -> None:
    bucket = filled(60, 60)
    bucket.drain(500)
    assert (bucket.used, bucket.at_ms) == (60 * UNIT, 1000)


def test_what_is_given_back_at_once_was_never_taken() -> None:
    bucket = filled(10, 4)
    taken = bucket.take(5)
    bucket.give_back(5, taken)
    assert bucket.left() == 6


def test_what_has_drained_in_place_of_another_cannot_be_given_back() -> None:
    bucket = filled(60)
    first = bucket.take(60)
    bucket.drain(1000 + 59_000)  # one left of the first
    bucket.take(59)
    bucket.give_back(60, first)
    assert bucket.used == 59 * UNIT, "the second minute's worth was used as well"


def test_a_debt_is_bounded_and_drains_like_the_rest() -> None:
    bucket = filled(10, 10)
    bucket.owe(1_000)
    assert bucket.used == HELD_MINUTES * 10 * UNIT
    bucket.drain(1000 + 2 * MINUTE_MS)
    assert bucket.left() == 10


def test_another_limit_keeps_what_was_used() -> None:
    bucket = filled(10, 7)
    bucket.set_limit(20)
    assert bucket.left() == 13
    bucket.set_limit(8)
    assert bucket.left() == 1


def test_the_highest_limit_stays_within_the_numbers_of_a_script() -> None:
    bucket = filled(MAX_LIMIT, MAX_LIMIT)
    bucket.owe(MAX_LIMIT)
    assert max(bucket.used, HELD_MINUTES * MINUTE_MS * MAX_LIMIT) < 2**53


def replayed(charges: list[tuple[int, int]], limit: int, now_ms: int) -> int:
    """Units used now, if only these amounts had been taken at these times."""
    used, at = 0, 0
    for taken_ms, amount in [*charges, (now_ms, 0)]:
        used = max(0, used - (taken_ms - at) * limit) + amount
        at = taken_ms
    return used


STEPS = st.lists(
    st.tuples(
        st.integers(0, 30_000),  # ms that pass
        st.integers(1, 40),  # asked for
        st.integers(0, 40),  # used in the end
        st.integers(0, 5),  # which of those under way ends, if there is one
    ),
    max_size=40,
)


def played(steps: list[tuple[int, int, int, int]], limit: int) -> list[tuple[int, int]]:
    """(units used, units used in a world where nobody asked for too much) after each step."""
    bucket, charges = filled(limit), list[tuple[int, int]]()
    open_: list[tuple[int, int, int]] = []  # index of the charge, asked, when
    found, now_ms = [], 1000
    for passed, asked, used, which in steps:
        now_ms += passed
        bucket.drain(now_ms)
        if bucket.wait_ms(asked) == 0:
            open_.append((len(charges), asked, bucket.take(asked)))
            charges.append((now_ms, asked * UNIT))
        elif which < len(open_):
            index, asked, taken_ms = open_.pop(which)
            bucket.give_back(asked - min(used, asked), taken_ms)
            charges[index] = (taken_ms, min(used, asked) * UNIT)
        found.append((bucket.used, replayed(charges, limit, now_ms)))
    return found


@given(steps=STEPS, limit=st.integers(1, 120))
def test_refunds_are_as_if_it_had_never_been_taken(
    steps: list[tuple[int, int, int, int]], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_LOWS", 1000)
        for used, should in played(steps, limit):
            assert used == should


@given(steps=STEPS, limit=st.integers(1, 120))
def test_with_a_short_memory_a_refund_is_never_too_high(
    steps: list[tuple[int, int, int, int]], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_LOWS", 3)
        for used, should in played(steps, limit):
            assert used >= should
