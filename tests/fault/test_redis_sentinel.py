"""Limits in a Redis behind three sentinels: exact, and back after its primary was replaced."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis as client_of_redis

from headway.core.base.errors import StoreUnavailable
from headway.core.tenancy.limits import Claim, Granted, Limits
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from headway.service.store.shared_limits import SharedLimits
from tests.services.servers import Redis, Sentinels, free_port, redis_sentinels

DEADLINE_S = 90.0
LIMITS = Limits(requests_per_minute=10, concurrent_requests=1000)
MANY = Limits(concurrent_requests=1000)
PREFIX = "headway"


@pytest.fixture
def servers() -> Iterator[Sentinels]:
    """Of this test's own, which it may stop."""
    with redis_sentinels() as found:
        yield found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario()

    asyncio.run(bounded())


def store(url: str, timeout_s: float = 5.0) -> RedisLimits:
    return RedisLimits(RedisSettings(url=url, prefix=PREFIX, timeout_s=timeout_s))


def claim(name: str, limits: Limits = LIMITS) -> Claim:
    return Claim(id=name, tenant="acme", limits=limits)


def slots_at(server: Redis) -> set[str]:
    """Requests that hold a slot there."""
    with client_of_redis.Redis.from_url(server.url) as client:
        found = client.zrange(f"{PREFIX}:{{t:acme}}:slots", 0, -1)
    assert isinstance(found, list)
    return {each.decode() for each in found}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.05)


async def granted(store: SharedLimits, name: str) -> bool:
    """Whether a request that holds a slot is let in; waits for no Redis that is away."""
    async with asyncio.timeout(30):
        return isinstance(await store.enter(claim(name, MANY), time.time()), Granted)


@pytest.mark.spec("M4")
def test_limits_are_exact_over_two_gateways_also_with_a_sentinel_that_is_gone(
    servers: Sentinels,
) -> None:
    async def scenario() -> None:
        servers.sentinels[0].stop(signal.SIGKILL)
        stores = [SharedLimits(store(servers.url), name) for name in ("a", "b")]
        tries = [stores[n % 2].enter(claim(f"r{n}"), time.time()) for n in range(14)]
        answers = await asyncio.gather(*tries)
        assert sum(isinstance(answer, Granted) for answer in answers) == 10
        assert [(each.is_up, each.num_degraded) for each in stores] == [(True, 0)] * 2
        assert len(slots_at(servers.primary)) == 10
        for each in stores:
            await each.close()

    run(scenario)


@pytest.mark.spec("M13")
def test_answers_go_on_when_the_primary_is_killed_and_the_replica_counts_from_then_on(
    servers: Sentinels,
) -> None:
    async def scenario() -> None:
        here = SharedLimits(store(servers.url, timeout_s=1.5), "a")
        assert await granted(here, "before")
        await until(lambda: slots_at(servers.replica) == {"before"})
        servers.primary.stop(signal.SIGKILL)
        assert await granted(here, "meanwhile")
        assert [here.is_up] == [False], "it is counted in the share"
        await until(lambda: here.is_up)
        assert await granted(here, "after")
        assert slots_at(servers.replica) >= {"before", "after"}, "it has what the other one had"
        servers.primary.start()  # as a primary, which the sentinels end
        await until(lambda: servers.follows(servers.primary))
        assert await granted(here, "later")
        assert [here.is_up] == [True]
        assert "later" in slots_at(servers.replica)
        await here.close()

    run(scenario)


@pytest.mark.spec("M13")
def test_a_primary_that_becomes_a_replica_is_left_for_the_one_that_follows_it(
    servers: Sentinels,
) -> None:
    async def scenario() -> None:
        here = SharedLimits(store(servers.url), "a")
        assert await granted(here, "before")
        servers.replace()
        await until(lambda: servers.follows(servers.primary))
        assert await granted(here, "after")
        await until(lambda: here.is_up)
        assert await granted(here, "later")
        assert "later" in slots_at(servers.replica)
        await here.close()

    run(scenario)


def test_passwords_of_the_redis_and_of_the_sentinels_are_given_to_each() -> None:
    async def scenario(url: str) -> None:
        here = store(url)
        assert isinstance(await here.enter(claim("one"), time.time()), Granted)
        await here.close()
        wrong = store(url.replace("sentinel_password=", "sentinel_password=not-"))
        with pytest.raises(StoreUnavailable):
            await wrong.enter(claim("two"), time.time())
        await wrong.close()

    with redis_sentinels("hush") as found:
        run(lambda: scenario(found.url))


def test_sentinels_that_are_not_there_or_know_no_such_service_are_a_store_that_is_away(
    servers: Sentinels,
) -> None:
    async def scenario() -> None:
        unknown = servers.url.replace(f"/{Sentinels.SERVICE}/", "/other/")
        nobody = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/limits"
        for url in (unknown, nobody):
            away = store(url)
            answers = [away.enter(claim(f"r{n}"), time.time()) for n in range(20)]
            found = await asyncio.gather(*answers, return_exceptions=True)
            assert {type(each) for each in found} == {StoreUnavailable}
            await away.close()
            shared = SharedLimits(store(url), "a")
            assert await granted(shared, "one")
            assert not shared.is_up
            await shared.close()

    run(scenario)
