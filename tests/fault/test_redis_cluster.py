"""Limits in a Redis Cluster of three nodes: exact as in one Redis, also when a node goes away."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from headway.core.tenancy.limits import Claim, Denied, Granted, Limits
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from headway.service.store.shared_limits import SharedLimits
from tests.services.servers import RedisNodes, redis_cluster

DEADLINE_S = 60.0
TENANTS = [f"tenant-{number}" for number in range(24)]  # in slots of all nodes
LIMITS = Limits(
    requests_per_minute=10,
    tokens_per_minute=1000,
    concurrent_requests=50,
    monthly_budget=1_000_000,
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """A cluster for these tests, which leave it whole."""
    with redis_cluster() as found:
        yield found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


def store(nodes: RedisNodes, prefix: str) -> RedisLimits:
    return RedisLimits(RedisSettings(url=nodes.url, prefix=prefix, timeout_s=5.0))


def claim(tenant: str, number: int, tokens: int = 0) -> Claim:
    return Claim(id=f"{tenant}-{number}", tenant=tenant, limits=LIMITS, tokens=tokens, cost=tokens)


async def entered(store: SharedLimits, number: int) -> int:
    """Of how many tenants a request of that number is let in."""
    answers = [await store.enter(claim(tenant, number), time.time()) for tenant in TENANTS]
    return sum(isinstance(answer, Granted) for answer in answers)


@pytest.mark.spec("M4")
def test_limits_are_exact_over_two_gateways_for_tenants_on_every_node(
    nodes: RedisNodes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stores = [SharedLimits(store(nodes, "exact"), name) for name in ("a", "b")]
        tries = [
            stores[number % 2].enter(claim(tenant, number), time.time())
            for tenant in TENANTS
            for number in range(14)
        ]
        answers = await asyncio.gather(*tries)
        granted = sum(isinstance(answer, Granted) for answer in answers)
        assert granted == 10 * len(TENANTS)
        assert [each.is_up for each in stores] == [True, True]
        assert [each.num_degraded for each in stores] == [0, 0]
        for each in stores:
            await each.close()
        said = [record.message for record in caplog.records if "limit" in record.message]
        assert said == ["limit_store_node_found"] * len(said)
        assert 4 <= len(said) <= 6, "each of the two has found two nodes, or three"

    with caplog.at_level(logging.INFO, logger="headway.service.store"):
        run(scenario)


def test_every_step_of_a_request_works_on_every_node(nodes: RedisNodes) -> None:
    async def scenario() -> None:
        here = store(nodes, "steps")
        for tenant in TENANTS:
            mine, now = claim(tenant, 0, tokens=900), time.time()
            assert isinstance(await here.enter(mine, now), Granted)
            assert isinstance(await here.reserve(mine, now), Granted)
            await here.renew([mine], now)
            over = claim(tenant, 1, tokens=200)
            assert isinstance(await here.enter(over, now), Granted)
            assert isinstance(await here.reserve(over, now), Denied)
            assert await here.spent(tenant, now) == 900
            await here.settle(mine, 100, 50, now)
            assert await here.spent(tenant, now) == 50
            await here.spent_at_least(tenant, 70, now)
            assert await here.spent(tenant, now) == 70
        assert await here.announce("a", time.time()) == 1
        await here.close()

    run(scenario)


@pytest.mark.spec("M13")
def test_answers_go_on_while_a_node_is_away_and_counts_when_it_is_back(nodes: RedisNodes) -> None:
    async def scenario() -> None:
        here = SharedLimits(store(nodes, "away"), "a")
        assert await entered(here, 0) == len(TENANTS)
        nodes.nodes[1].stop(signal.SIGKILL)
        assert await entered(here, 1) == len(TENANTS)
        assert [here.is_up] == [False]
        nodes.nodes[1].start()
        async with asyncio.timeout(DEADLINE_S):
            while not here.is_up:
                await asyncio.sleep(0.05)
        granted = await entered(here, 100)
        assert [here.is_up, granted] == [True, len(TENANTS)]
        await here.close()

    run(scenario)
