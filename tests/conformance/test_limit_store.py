"""Every LimitStore counts the same: in memory, and in a real Redis by its scripts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.tenancy.limits import (
    LEASE_S,
    Claim,
    Denied,
    Granted,
    LimitKind,
    Limits,
    LimitStore,
)
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from tests.services.servers import Redis

NOW = 1_795_996_800.0  # 2026-11-30 00:00 UTC
DAY_S = 86_400.0
NUMBERS = count()


class Store(LimitStore, Protocol):
    """What both have beside the protocol."""

    async def spend(self, tenant: str, micros: int, now: float) -> None: ...

    async def spent_at_least(self, tenant: str, micros: int, now: float) -> None: ...

    async def spent(self, tenant: str, now: float) -> int: ...


def redis_store(server: Redis) -> RedisLimits:
    """Counts of its own; the time is what the calls say."""
    made = RedisSettings(url=server.url, prefix=f"test{next(NUMBERS)}", timeout_s=20.0)
    return RedisLimits(made, use_server_time=False)


Scenario = Callable[[Store], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=["memory", "redis"])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scenario over a new store."""

    async def over(scenario: Scenario) -> None:
        if request.param == "memory":
            await scenario(MemoryLimits())
            return
        store = redis_store(request.getfixturevalue("redis_server"))
        try:
            await scenario(store)
        finally:
            await store.close()

    return lambda scenario: asyncio.run(over(scenario))


def claim(name: str = "a", *, tokens: int = 0, cost: int = 0, **limits: int) -> Claim:
    return Claim(id=name, tenant="acme", limits=Limits(**limits), tokens=tokens, cost=cost)


def kind_of(answer: Granted | Denied) -> LimitKind | None:
    return answer.kind if isinstance(answer, Denied) else None


@pytest.mark.spec("A2")
def test_so_many_requests_a_minute_enter_and_not_one_more(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"requests_per_minute": 3}
        for left in (2, 1, 0):
            answer = await store.enter(claim(f"c{left}", **limits), NOW)
            assert isinstance(answer, Granted)
            assert answer.standing.remaining_requests == left
        answer = await store.enter(claim("over", **limits), NOW + 1)
        assert isinstance(answer, Denied)
        assert (answer.kind, answer.limit) == (LimitKind.REQUESTS, 3)
        assert answer.retry_after_s == 19.0
        assert answer.standing.reset_requests_s == 59.0
        assert kind_of(await store.enter(claim("again", **limits), NOW + 19.999)) is not None
        assert kind_of(await store.enter(claim("now", **limits), NOW + 20)) is None

    play(scenario)


def test_a_refusal_for_concurrency_leaves_no_trace_rate_limits_01(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"requests_per_minute": 2, "concurrent_requests": 1}
        first = await store.enter(claim("a", **limits), NOW)
        second = await store.enter(claim("b", **limits), NOW + 0.5)
        assert isinstance(second, Denied)
        assert second.kind is LimitKind.CONCURRENCY
        assert second.standing.remaining_requests == first.standing.remaining_requests == 1
        await store.settle(claim("a", **limits), 0, 0, NOW + 3)
        assert kind_of(await store.enter(claim("c", **limits), NOW + 3.5)) is None

    play(scenario)


def test_a_refusal_for_tokens_gives_request_and_slot_back_rate_limits_01(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"requests_per_minute": 2, "concurrent_requests": 1, "tokens_per_minute": 100}
        for number in range(5):  # more than enter a minute, if any counted
            one = claim(f"n{number}", tokens=101, **limits)
            assert kind_of(await store.enter(one, NOW)) is None
            refused = await store.reserve(one, NOW)
            assert isinstance(refused, Denied)
            assert (refused.kind, refused.retry_after_s) == (LimitKind.TOKENS, None)
            assert refused.standing.remaining_requests == 2
            assert refused.standing.remaining_tokens == 100

    play(scenario)


@pytest.mark.spec("M4")
def test_tokens_are_reserved_and_the_rest_comes_back(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"tokens_per_minute": 600}
        one = claim("a", tokens=500, **limits)
        await store.enter(one, NOW)
        answer = await store.reserve(one, NOW)
        assert answer.standing.remaining_tokens == 100
        two = claim("b", tokens=200, **limits)
        await store.enter(two, NOW)
        refused = await store.reserve(two, NOW)
        assert isinstance(refused, Denied)
        assert refused.retry_after_s == 10.0
        await store.settle(one, 50, 0, NOW)
        await store.enter(two, NOW)
        answer = await store.reserve(two, NOW)
        assert answer.standing.remaining_tokens == 600 - 50 - 200

    play(scenario)


def test_what_was_used_beyond_the_reservation_is_owed(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"tokens_per_minute": 60}
        one, next_ = claim("a", tokens=50, **limits), claim("b", tokens=1, **limits)
        await store.enter(one, NOW)
        await store.reserve(one, NOW)
        await store.settle(one, 90, 0, NOW)
        await store.enter(next_, NOW)
        refused = await store.reserve(next_, NOW)
        assert isinstance(refused, Denied)
        assert refused.retry_after_s == 31.0

    play(scenario)


def test_settling_twice_or_what_was_never_granted_changes_nothing(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"tokens_per_minute": 100, "concurrent_requests": 1}
        one, probe = claim("a", tokens=80, cost=7, **limits), claim("p", tokens=1, **limits)
        await store.enter(one, NOW)
        await store.reserve(one, NOW)
        for _ in range(2):
            await store.settle(one, 30, 5, NOW)
        await store.settle(claim("elsewhere", tokens=50, cost=9, **limits), 50, 9, NOW)
        await store.enter(probe, NOW)
        answer = await store.reserve(probe, NOW)
        assert answer.standing.remaining_tokens == 69
        assert await store.spent("acme", NOW) == 5
        assert kind_of(await store.enter(claim("q", **limits), NOW)) is LimitKind.CONCURRENCY

    play(scenario)


def test_a_call_made_again_counts_once(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"requests_per_minute": 5, "tokens_per_minute": 100, "concurrent_requests": 1}
        one = claim("a", tokens=40, cost=3, **limits)
        for _ in range(2):
            assert (await store.enter(one, NOW)).standing.remaining_requests == 4
        for _ in range(2):
            assert (await store.reserve(one, NOW)).standing.remaining_tokens == 60
        assert await store.spent("acme", NOW) == 3

    play(scenario)


def test_a_slot_nobody_renews_is_free_after_its_lease_rate_limits_02(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"concurrent_requests": 1}
        one = claim("a", **limits)
        await store.enter(one, NOW)
        await store.renew([one], NOW + 40)
        late = NOW + 40 + LEASE_S
        assert kind_of(await store.enter(claim("b", **limits), late - 0.001)) is not None
        assert kind_of(await store.enter(claim("b", **limits), late)) is None
        await store.settle(claim("b", **limits), 0, 0, late)
        await store.settle(one, 0, 0, late)
        await store.renew([one], late)
        assert kind_of(await store.enter(claim("c", **limits), late)) is None

    play(scenario)


def test_a_budget_ends_with_the_month_and_refunds_go_to_their_own(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"monthly_budget": 100}
        last = NOW + DAY_S - 1  # a second before December
        one, two = claim("a", cost=80, **limits), claim("b", cost=30, **limits)
        await store.enter(one, last)
        await store.reserve(one, last)
        await store.enter(two, last)
        refused = await store.reserve(two, last)
        assert isinstance(refused, Denied)
        assert (refused.kind, refused.limit) == (LimitKind.BUDGET, 100)
        assert refused.retry_after_s == 1.0
        await store.enter(two, last + 1)
        assert kind_of(await store.reserve(two, last + 1)) is None
        await store.settle(one, 0, 10, last + 2)
        assert await store.spent("acme", last) == 10
        assert await store.spent("acme", last + 1) == 30
        too_much = claim("c", cost=101, **limits)
        await store.enter(too_much, last + 2)
        refused = await store.reserve(too_much, last + 2)
        assert isinstance(refused, Denied)
        assert refused.retry_after_s is None

    play(scenario)


def test_a_clock_that_goes_back_gives_nothing_away(play: Play) -> None:
    async def scenario(store: Store) -> None:
        limits = {"requests_per_minute": 60, "concurrent_requests": 9}
        await store.enter(claim("a", **limits), NOW)
        answer = await store.enter(claim("b", **limits), NOW - 30)
        assert answer.standing.remaining_requests == 58
        answer = await store.enter(claim("c", **limits), NOW + 1)
        assert answer.standing.remaining_requests == 58

    play(scenario)


def test_what_is_known_to_have_been_spent_is_a_lower_bound(play: Play) -> None:
    async def scenario(store: Store) -> None:
        await store.spent_at_least("acme", 60, NOW)
        await store.spend("acme", 10, NOW)
        await store.spent_at_least("acme", 65, NOW)
        assert await store.spent("acme", NOW) == 70
        one = claim("a", cost=31, monthly_budget=100)
        assert kind_of(await store.reserve(one, NOW)) is LimitKind.BUDGET
        assert await store.spent("acme", NOW + DAY_S) == 0

    play(scenario)


def test_other_limits_keep_the_counts_and_tenants_have_their_own(play: Play) -> None:
    async def scenario(store: Store) -> None:
        for number in range(3):
            await store.enter(claim(f"n{number}", requests_per_minute=5), NOW)
        answer = await store.enter(claim("more", requests_per_minute=10), NOW)
        assert answer.standing.remaining_requests == 6
        assert kind_of(await store.enter(claim("less", requests_per_minute=4), NOW)) is not None
        other = Claim(id="x", tenant="b", limits=Limits(requests_per_minute=5))
        assert (await store.enter(other, NOW)).standing.remaining_requests == 4

    play(scenario)


LIMITS = (
    Limits(requests_per_minute=4),
    Limits(requests_per_minute=3, concurrent_requests=2, tokens_per_minute=1000),
    Limits(requests_per_minute=30, tokens_per_minute=977, monthly_budget=3000),
    Limits(concurrent_requests=3, tokens_per_minute=333),
    Limits(requests_per_minute=7, tokens_per_minute=50, concurrent_requests=1, monthly_budget=500),
    Limits(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "reserve", "reserve", "settle", "renew", "again"]),
        st.sampled_from([0, 0, 1, 17, 400, 3_000, 20_000, 61_000, 86_400_000]),  # ms
        st.integers(0, 7),  # which claim of those known
        st.integers(0, len(LIMITS) - 1),
        st.integers(0, 1100),  # tokens
        st.integers(0, 700),  # cost
    ),
    max_size=60,
)
Step = tuple[str, int, int, int, int, int]


async def answers(store: Store, steps: list[Step]) -> list[object]:
    """What the store says to each step, and what it has counted in the end."""
    known: list[Claim] = []
    now_ms, found = round(NOW * 1000), list[object]()
    for number, (what, passed, which, limits, tokens, cost) in enumerate(steps):
        now_ms += passed
        now = now_ms / 1000
        one = known[which % len(known)] if known else None
        if what == "enter" or one is None:
            one = Claim(
                id=f"n{number}", tenant="t", limits=LIMITS[limits], tokens=tokens, cost=cost
            )
            known.append(one)
            found.append(await store.enter(one, now))
        elif what == "reserve":
            found.append(await store.reserve(one, now))
        elif what == "settle":
            await store.settle(one, tokens, cost, now)
        elif what == "renew":
            await store.renew(known[:which], now)
        else:
            found.append(await store.enter(one, now))
        found.append(await store.spent("t", now))
    return found


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_both_stores_give_the_same_answers(
    loop: asyncio.Runner, redis_server: Redis, steps: list[Step]
) -> None:
    async def both() -> None:
        store = redis_store(redis_server)
        try:
            assert await answers(store, steps) == await answers(MemoryLimits(), steps)
        finally:
            await store.close()

    loop.run(both())
