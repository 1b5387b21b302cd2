"""Names of tenants that look like keys of a Redis, or like commands: each counts for itself."""

import asyncio
import itertools

import pytest
from redis.asyncio import Redis

from headway.core.base.errors import InvalidRequest
from headway.core.tenancy.limits import Claim, Denied, Granted, Limits
from headway.core.tenancy.tenant import TENANT_NAME
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.redis_limits import RedisLimits, RedisSettings
from tests.unit.service.gateway.keys import add_tenant

ONE = Limits(requests_per_minute=1, concurrent_requests=5, tokens_per_minute=100)
NOW = 1_796_040_000.0
# None of these can be a tenant's name; the keys have to hold also if one were.
NAMES = (
    *("", "a", "a}:slots", "a}:buckets", "{t:a", "a}", "t:a", "a:claim:1", "*", "a\r\nFLUSHALL"),
    *("gateways", "headway:gateways", "a\0", "a b", "🙂", "a}:{t:b", "b"),
)


@pytest.mark.parametrize("name", [each for each in NAMES if each not in {"a", "b", "gateways"}])
def test_a_name_that_could_be_taken_for_a_key_is_no_tenants(name: str) -> None:
    assert TENANT_NAME.fullmatch(name) is None
    with pytest.raises(InvalidRequest):
        add_tenant(MemoryAccounts(), name)


def test_every_tenants_counts_are_under_its_own_keys(redis_url: str) -> None:
    async def scenario() -> None:
        store = RedisLimits(RedisSettings(url=redis_url), use_server_time=False)
        redis = Redis.from_url(redis_url, decode_responses=True)

        async def keys() -> set[str]:
            return {str(each) for each in await redis.keys("*")}

        numbers = itertools.count()
        seen: set[str] = set()
        try:
            assert await store.announce("g-1", NOW) == 1
            seen |= await keys()
            for name in NAMES:
                claim = Claim(id=f"r{next(numbers)}", tenant=name, limits=ONE, tokens=10)
                assert isinstance(await store.enter(claim, NOW), Granted), name
                assert isinstance(await store.reserve(claim, NOW), Granted), name
                made = await keys() - seen
                assert made, name
                tag = f"headway:{{t:{name}}}:"
                assert all(each.startswith(tag) for each in made), made
                seen |= made
            for name in NAMES:
                claim = Claim(id=f"r{next(numbers)}", tenant=name, limits=ONE)
                assert isinstance(await store.enter(claim, NOW), Denied), name
            assert await store.announce("g-2", NOW) == 2
        finally:
            await store.close()
            await redis.aclose()

    asyncio.run(scenario())
