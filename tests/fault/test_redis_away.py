"""Limits while Redis is stopped, frozen or started anew: answers go on, and counts come back."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis as AsyncRedis

from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from headway.service.store.shared_limits import AWAY_RETRY_S, SharedLimits
from tests.services.servers import Redis, redis_at_work

DEADLINE_S = 90.0
TIMEOUT_S = 1.5  # a Redis on a busy machine is not away


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis of this test's own, which it may stop."""
    with redis_at_work() as server:
        yield server


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario()

    asyncio.run(bounded())


def gateway(server: Redis, name: str = "g", *, share: float | None = None) -> SharedLimits:
    store = RedisLimits(RedisSettings(url=server.url, timeout_s=TIMEOUT_S))
    return SharedLimits(store, name, share=share)


def claim(name: str, *, tokens: int = 0, cost: int = 0, **limits: int) -> Claim:
    return Claim(id=name, tenant="acme", limits=Limits(**limits), tokens=tokens, cost=cost)


def kind_of(answer: Granted | Denied) -> LimitKind | None:
    return answer.kind if isinstance(answer, Denied) else None


async def until_up(store: SharedLimits) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not store.is_up:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def entered(store: SharedLimits, name: str, count: int, **limits: int) -> int:
    """How many of so many requests were let in."""
    answers = [await store.enter(claim(f"{name}{n}", **limits), time.time()) for n in range(count)]
    return sum(isinstance(answer, Granted) for answer in answers)


@pytest.mark.spec("M13")
def test_each_gateway_grants_its_share_while_redis_is_away_and_says_so_once(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stores = [gateway(redis, name) for name in "abc"]
        for _ in range(2):  # the second time each has seen the others
            for store in stores:
                await store.renew((), time.time())
        redis.stop(signal.SIGTERM)
        granted = [await entered(store, "n", 9, requests_per_minute=9) for store in stores]
        assert granted == [3, 3, 3]
        assert [(store.is_up, store.num_degraded) for store in stores] == [(False, 9)] * 3
        lines = [record.message for record in caplog.records]
        assert lines == ["limit_store_away"] * 3
        redis.start()
        for store in stores:
            await until_up(store)
        assert await entered(stores[0], "m", 10, requests_per_minute=9) == 9
        assert [store.num_degraded for store in stores] == [9] * 3
        for store in stores:
            await store.close()

    caplog.set_level(logging.WARNING, "headway.service.store.shared_limits")
    run(scenario)
    lines = [record.message for record in caplog.records]
    assert lines.count("limit_store_back") == 3


def test_a_share_may_be_set_and_is_at_least_one(redis: Redis) -> None:
    async def scenario() -> None:
        store = gateway(redis, share=0.25)
        redis.stop(signal.SIGTERM)
        assert await entered(store, "a", 9, requests_per_minute=8) == 2
        assert await entered(store, "b", 9, concurrent_requests=2) == 1
        await store.close()

    run(scenario)


def test_a_large_request_may_take_the_whole_share_and_one_too_large_for_all_is_refused(
    redis: Redis,
) -> None:
    async def scenario() -> None:
        store = gateway(redis, share=0.1)
        redis.stop(signal.SIGTERM)
        large = claim("a", tokens=900, tokens_per_minute=1000)
        assert kind_of(await store.reserve(large, time.time())) is None
        small = await store.reserve(claim("b", tokens=10, tokens_per_minute=1000), time.time())
        assert isinstance(small, Denied)
        assert small.limit == 1000
        assert small.retry_after_s is not None
        never = await store.reserve(claim("c", tokens=1001, tokens_per_minute=1000), time.time())
        assert isinstance(never, Denied)
        assert never.retry_after_s is None
        await store.close()

    run(scenario)


def test_what_ends_while_redis_does_not_answer_is_told_to_it_afterwards(redis: Redis) -> None:
    limits = {"concurrent_requests": 1, "tokens_per_minute": 1000, "monthly_budget": 100}

    async def scenario() -> None:
        store = gateway(redis)
        one, next_ = claim("a", tokens=900, cost=60, **limits), claim("b", tokens=800, **limits)
        now = time.time()
        assert kind_of(await store.enter(one, now)) is None
        assert kind_of(await store.reserve(one, now)) is None
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            await store.settle(one, 100, 7, now)
            assert not store.is_up
            began = time.monotonic()
            two = claim("c", cost=30, **limits)
            assert kind_of(await store.enter(two, now)) is None
            assert kind_of(await store.reserve(two, now)) is None
            assert time.monotonic() - began < TIMEOUT_S, "nobody waits for a store that is away"
            dear = await store.reserve(claim("d", cost=31, **limits), now)
            assert isinstance(dear, Denied), "40 micros were left when it was last heard of"
            assert dear.retry_after_s == AWAY_RETRY_S
            await store.settle(two, 0, 20, now)
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await until_up(store)
        assert kind_of(await store.enter(next_, now)) is None, "its slot was given back"
        assert kind_of(await store.reserve(next_, now)) is None, "and its tokens"
        reader = RedisLimits(RedisSettings(url=redis.url))
        assert await reader.spent("acme", now) == 7 + 20
        await reader.close()
        await store.close()

    run(scenario)


def test_what_was_granted_while_redis_was_away_may_end_when_it_is_back(redis: Redis) -> None:
    limits = {"concurrent_requests": 3, "monthly_budget": 1000}

    async def scenario() -> None:
        store = gateway(redis)
        redis.stop(signal.SIGTERM)
        one = claim("a", cost=50, **limits)
        await store.enter(one, time.time())
        await store.reserve(one, time.time())
        redis.start()
        await until_up(store)
        await store.renew([one], time.time())
        for _ in range(2):
            await store.settle(one, 0, 40, time.time())
        assert await entered(store, "n", 5, **limits) == 3
        reader = RedisLimits(RedisSettings(url=redis.url))
        assert await reader.spent("acme", time.time()) == 40
        await reader.close()
        await store.close()

    run(scenario)


def test_whoever_knows_what_was_spent_is_asked_when_redis_is_back(redis: Redis) -> None:
    limits = {"monthly_budget": 100}

    async def scenario() -> None:
        async def recall() -> None:
            await store.spent_at_least("acme", 95, time.time())
            recalled.set()

        recalled = asyncio.Event()
        settings = RedisSettings(url=redis.url, timeout_s=TIMEOUT_S)
        store = SharedLimits(RedisLimits(settings), "g", on_back=recall)
        redis.stop(signal.SIGTERM)
        assert kind_of(await store.enter(claim("a", **limits), time.time())) is None
        redis.start()
        await asyncio.wait_for(recalled.wait(), DEADLINE_S)
        dear = await store.reserve(claim("b", cost=6, **limits), time.time())
        assert kind_of(dear) is LimitKind.BUDGET
        await store.close()

    run(scenario)


def test_scripts_that_redis_forgot_are_sent_again(redis: Redis) -> None:
    async def scenario() -> None:
        store = gateway(redis)
        # At once, so that there are many connections for the restart to break.
        asked = [entered(store, f"a{n}", 1, requests_per_minute=20) for n in range(20)]
        assert sum(await asyncio.gather(*asked)) == 20
        redis.stop(signal.SIGTERM)
        redis.start()
        assert await entered(store, "b", 9, requests_per_minute=5) == 5
        assert (store.is_up, store.num_degraded) == (True, 0), "a broken connection is no outage"
        await store.close()

    run(scenario)


def test_every_key_has_an_end_of_life(redis: Redis) -> None:
    async def scenario() -> None:
        store = gateway(redis)
        limits = {
            "requests_per_minute": 5,
            "tokens_per_minute": 100,
            "concurrent_requests": 2,
            "monthly_budget": 9,
        }
        one = claim("a", tokens=10, cost=3, **limits)
        await store.enter(one, time.time())
        await store.reserve(one, time.time())
        await store.renew([one], time.time())
        probe = AsyncRedis.from_url(redis.url)
        keys = [key async for key in probe.scan_iter()]
        lives = {key.decode(): await probe.pttl(key) for key in keys}
        assert len(lives) == 5
        assert all(life > 0 for life in lives.values()), lives
        tenants = [key for key in lives if "{t:acme}" in key]
        assert len(tenants) == 4, "those of one tenant share a hash tag"
        await probe.aclose()
        await store.close()

    run(scenario)
