"""Where a gateway process counts its tenants' limits."""

import asyncio
import subprocess
import sys
import time

import pytest

from headway.app.limits import TenantLimits
from headway.core.base.errors import InvalidSetting
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.limits import Claim, Denied, Granted, Limits
from headway.service.gateway.ledger import MemoryLedger
from headway.service.gateway.limit_settings import RateLimitSettings

CLAIM = Claim(id="a", tenant="acme", limits=Limits(concurrent_requests=1))


def test_without_redis_limits_are_counted_in_memory_and_nothing_is_shared() -> None:
    async def scenario() -> None:
        limits = TenantLimits(RateLimitSettings(), "g")
        assert limits.state is None
        limits.start()
        assert isinstance(await limits.store.enter(CLAIM, 1.0), Granted)
        other = Claim(id="b", tenant="acme", limits=CLAIM.limits)
        assert isinstance(await limits.store.enter(other, 1.0), Denied)
        await limits.close()

    asyncio.run(scenario())


def test_with_redis_they_are_counted_there(redis_url: str) -> None:
    async def scenario() -> None:
        settings = RateLimitSettings(redis_url=redis_url)
        one, other = TenantLimits(settings, "g1"), TenantLimits(settings, "g2")
        assert one.state is not None
        assert isinstance(await one.store.enter(CLAIM, 1.0), Granted)
        second = Claim(id="b", tenant="acme", limits=CLAIM.limits)
        assert isinstance(await other.store.enter(second, 1.0), Denied)
        assert one.state.is_up
        for each in (one, other):
            await each.close()

    asyncio.run(scenario())


def test_what_a_dead_gateway_had_under_way_is_settled_by_another(redis_url: str) -> None:
    limits = Limits(concurrent_requests=1, tokens_per_minute=100, monthly_budget=50)
    claim = Claim(id="a", tenant="acme", limits=limits, tokens=90, cost=40)
    record = RequestRecord(
        id="a", tenant="acme", began=1.0, outcome="lost", prompt_tokens=5, cost=3
    )
    dear = Claim(id="b", tenant="acme", limits=limits, tokens=95, cost=47)

    async def scenario() -> None:
        settings = RateLimitSettings(redis_url=redis_url)
        dead, other = TenantLimits(settings, "dead"), TenantLimits(settings, "other")
        await dead.store.enter(claim, time.time())
        await dead.store.reserve(claim, time.time())
        await dead.close()
        other.start()
        await asyncio.to_thread(other.on_lost, record)
        async with asyncio.timeout(60):
            while isinstance(await other.store.enter(dear, time.time()), Denied):
                await asyncio.sleep(0.01)
        assert isinstance(await other.store.reserve(dear, time.time()), Granted)
        await other.close()

    asyncio.run(scenario())


def test_what_the_ledger_knows_was_spent_counts_after_a_new_start() -> None:
    limits = Limits(monthly_budget=100)

    async def scenario() -> None:
        keeper = MemoryLedger()
        for name, age_s, cost in (("now", 0.0, 70), ("old", 90 * 86_400.0, 500)):
            began = time.time() - age_s
            keeper.closed(
                RequestRecord(id=name, tenant="acme", began=began, outcome="ok", cost=cost),
                lambda: 0,
            )
        kept = TenantLimits(RateLimitSettings(), "g")
        await kept.recall(keeper)
        claim = Claim(id="a", tenant="acme", limits=limits, cost=31)
        assert isinstance(await kept.store.reserve(claim, time.time()), Denied)
        claim = Claim(id="b", tenant="acme", limits=limits, cost=30)
        assert isinstance(await kept.store.reserve(claim, time.time()), Granted)
        await kept.close()

    asyncio.run(scenario())


def test_a_url_that_is_none_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidSetting, match="redis_url") as found:
        TenantLimits(RateLimitSettings(redis_url="http://:secret@here"), "g")
    assert "secret" not in str(found.value)


def test_a_server_without_redis_does_not_load_its_client() -> None:
    probe = "import headway.app.gateway, sys; print({'redis', 'sqlalchemy'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"
