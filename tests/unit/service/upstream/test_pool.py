"""The servers behind one model: who gets a request, and who waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headway.core.base.errors import QueueFull, ReplicaNotReady
from headway.core.route.upstream_line import Newcomer
from headway.service.observe.clock import SystemClock
from headway.service.upstream.pool import UpstreamPool, Wish
from headway.service.upstream.settings import UpstreamSettings
from tests.unit.service.gateway.fakes import run

URLS = ("http://a:1", "http://b:1")


def pooled(scenario: Callable[[UpstreamPool], Awaitable[None]], **fields: Any) -> None:
    """A pool that is not started: nobody is probed, and everybody may be sent to."""

    async def whole() -> None:
        given = {"name": "m", "url": URLS, "max_concurrent": 1, "max_waiting": 2, **fields}
        await scenario(UpstreamPool(UpstreamSettings(**given), None, None, SystemClock()))

    run(whole())


async def take(pool: UpstreamPool, slo_class: int = 1) -> Any:
    lease = await pool.lease(Wish(who=Newcomer(slo_class=slo_class)), ())
    lease.__enter__()
    return lease


def leave(lease: Any) -> None:
    lease.__exit__(None, None, None)


def test_a_server_never_has_more_than_it_may() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        one, two = await take(pool), await take(pool)
        assert {one.replica.label, two.replica.label} == {"a:1", "b:1"}
        waiting = asyncio.create_task(take(pool))
        await asyncio.sleep(0)
        assert not waiting.done()
        leave(one)
        assert (await waiting).replica is one.replica

    pooled(scenario)


def test_the_more_important_class_is_let_in_first_and_then_who_came_first() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        held = await take(pool)
        order: list[str] = []

        async def ask(name: str, slo_class: int) -> None:
            lease = await take(pool, slo_class)
            order.append(name)
            leave(lease)

        asked = []
        for name, slo_class in (("first", 1), ("second", 1), ("vip", 0)):
            asked.append(asyncio.create_task(ask(name, slo_class)))
            await asyncio.sleep(0)
        leave(held)
        await asyncio.gather(*asked)
        assert order == ["vip", "first", "second"]

    pooled(scenario, url="http://a:1", max_waiting=3)


def test_too_many_that_wait_are_refused_and_who_gives_up_makes_room() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        held = await take(pool)
        waiting = [asyncio.create_task(take(pool)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await take(pool)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        last = asyncio.create_task(take(pool))
        await asyncio.sleep(0)
        leave(held)
        leave(await waiting[1])
        leave(await last)

    pooled(scenario, url="http://a:1")


def test_a_further_try_goes_elsewhere_and_never_waits() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        again = await pool.lease(Wish(), {"a:1"})
        assert again.replica.label == "b:1"
        again.__enter__()
        with pytest.raises(QueueFull):
            await pool.lease(Wish(), {"a:1"})
        with pytest.raises(ReplicaNotReady):
            await pool.lease(Wish(), {"a:1", "b:1"})

    pooled(scenario)


def test_a_server_that_fails_is_left_out_and_returns_step_by_step() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        bad = pool.replicas[0]
        for _ in range(3):
            bad.breaker.failed(SystemClock().now())
        for _ in range(8):
            with await pool.lease(Wish(), ()) as lease:
                assert lease.replica is not bad
        assert pool.replicas[0].in_flight == 0

    pooled(scenario)


def test_without_any_server_the_answer_is_at_once_no_with_a_time() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        now = SystemClock().now()
        for replica in pool.replicas:
            replica.probed("away", now)
        with pytest.raises(ReplicaNotReady, match="2 of 2 are away") as raised:
            await pool.lease(Wish(), ())
        assert raised.value.retry_after_s >= 1.0

    pooled(scenario)


def test_a_warm_server_is_preferred_until_it_has_too_much_more() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        wish = Wish(names=(b"x" * 8, b"y" * 8))
        first = await pool.lease(wish, ())
        first.__enter__()
        leases = []
        for _ in range(3):
            leases.append(await pool.lease(wish, ()))
            leases[-1].__enter__()
        labels = [each.replica.label for each in leases]
        assert labels[:2] == [first.replica.label] * 2
        assert labels[2] != first.replica.label

    pooled(scenario, max_concurrent=8, max_skew=2)


def test_one_bad_probe_is_no_death_and_two_are() -> None:
    async def scenario(pool: UpstreamPool) -> None:
        replica, now = pool.replicas[0], SystemClock().now()
        replica.probed("", now)
        replica.probed("slow", now)
        told = [replica.is_healthy]
        for problem in ("slow", ""):
            replica.probed(problem, now)
            told.append(replica.is_healthy)
        assert told == [True, False, True]

    pooled(scenario)
