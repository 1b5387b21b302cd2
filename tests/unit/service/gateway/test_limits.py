"""Tenants' limits at the gateway: what is counted, told, refused and given back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest

from headway.core.messages.path import EngineRequest
from headway.core.tenancy.limits import LEASE_S, Claim, Denied, Granted, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    CONTEXT,
    HI,
    FakeReplica,
    Site,
    close,
    reset,
    run,
    say_hello,
    site,
    until,
)

ACME = {"Authorization": "Bearer sk-acme"}
SETTINGS = GatewaySettings(tenant=("acme:standard:sk-acme", "other:vip:sk-other"))


@asynccontextmanager
async def limited(
    *, replica: FakeReplica | None = None, reserve_tokens: int = 1024, **limits: int
) -> AsyncIterator[Site]:
    """A gateway where acme has these limits and nobody else has any."""
    rates = RateLimitSettings(
        tenants={"acme": Limits(**limits)}, reserve_tokens=reserve_tokens, metrics_by_tenant=True
    )
    async with site(
        settings=SETTINGS,
        replica=replica,
        rate_limits=LimitTable(rates),
        limit_store=MemoryLimits(),
    ) as here:
        yield here


def talking() -> FakeReplica:
    replica = FakeReplica()
    replica.script = say_hello
    return replica


def of_limits(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("x-ratelimit-"): value
        for name, value in headers.items()
        if name.startswith("x-ratelimit-")
    }


async def ask(here: Site, **fields: object) -> httpx.Response:
    return await here.client.post(CHAT, json=HI | fields, headers=ACME)


@pytest.mark.spec("A2")
@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_of_a_tenant_with_limits_says_how_it_stands(stream: bool) -> None:
    async def scenario() -> None:
        limits = {"requests_per_minute": 5, "tokens_per_minute": 6000}
        async with limited(replica=talking(), **limits) as here:
            answer = await ask(here, stream=stream, max_tokens=98)
            assert answer.status_code == 200
            told = of_limits(answer.headers)
            assert re.fullmatch(r"12s|11\.\d+s", told.pop("reset-requests"))
            assert re.fullmatch(r"1s|\d+ms", told.pop("reset-tokens"))
            assert told == {
                "limit-requests": "5",
                "remaining-requests": "4",
                "limit-tokens": "6000",
                "remaining-tokens": "5900",
            }
            other = await here.client.post(
                CHAT, json=HI, headers={"Authorization": "Bearer sk-other"}
            )
            assert of_limits(other.headers) == {}
            broken = await ask(here, max_tokens=-1)
            assert broken.status_code == 400
            assert of_limits(broken.headers) == {}, "it was refused before it was counted"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_one_too_many_is_a_429_that_says_when_to_come_again(stream: bool) -> None:
    async def scenario() -> None:
        async with limited(replica=talking(), requests_per_minute=2) as here:
            for _ in range(2):
                assert (await ask(here)).status_code == 200
            refused = await ask(here, stream=stream)
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
            assert "2 requests a minute" in error["message"]
            wait_ms = int(refused.headers["retry-after-ms"])
            assert 29_000 < wait_ms <= 30_000
            assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
            assert of_limits(refused.headers)["remaining-requests"] == "0"
            assert (await here.outcomes())["rejected_limit"] == 1
            assert await here.metric("headway_limit_denials_total") == {
                '{kind="requests",slo_class="standard"}': 1
            }
            assert await here.metric("headway_tenant_limit_denials_total") == {
                '{kind="requests",tenant="acme"}': 1
            }

    run(scenario())


@pytest.mark.spec("M4")
def test_a_request_refused_for_concurrency_counts_for_nothing_rate_limits_01() -> None:
    async def scenario() -> None:
        async with limited(requests_per_minute=2, concurrent_requests=1) as here:
            first = asyncio.create_task(ask(here))
            (name,) = await here.calls(1)
            refused = await ask(here)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "concurrency")
            assert of_limits(refused.headers)["remaining-requests"] == "1"
            say_hello(here.replica, here.replica.requests[name])
            assert (await first).status_code == 200
            here.replica.script = say_hello
            third = await ask(here)
            assert third.status_code == 200
            assert of_limits(third.headers)["remaining-requests"] == "0"

    run(scenario())


def test_a_request_refused_for_its_tokens_counts_for_nothing_rate_limits_01() -> None:
    async def scenario() -> None:
        limits = {"requests_per_minute": 2, "concurrent_requests": 1, "tokens_per_minute": 100}
        async with limited(replica=talking(), **limits) as here:
            for _ in range(4):
                refused = await ask(here, max_tokens=99)
                assert refused.status_code == 429
                assert "too large" in refused.json()["error"]["message"]
                assert refused.headers["x-should-retry"] == "false"
                assert "retry-after" not in refused.headers
                assert of_limits(refused.headers)["remaining-requests"] == "2"
                assert of_limits(refused.headers)["remaining-tokens"] == "100"
            assert not here.replica.requests, "nothing was sent to the engine"
            assert (await ask(here, max_tokens=98)).status_code == 200

    run(scenario())


async def cut(here: Site) -> None:
    """A stream whose client leaves after two events."""
    reader, writer = await here.send(CHAT, HI | {"stream": True}, ACME)
    name = (await here.calls(1))[-1]
    here.replica.start(name)
    for text in "ab":
        here.replica.say(name, text)
        while text.encode() not in await reader.readline():
            pass
    reset(writer)
    await close(writer)


async def failed(here: Site) -> None:
    """The engine gives up."""
    asked = asyncio.create_task(ask(here))
    (name,) = await here.calls(1)
    here.replica.fail(name, "out of time", "deadline_unmeetable")
    assert (await asked).status_code == 503


async def lost(here: Site) -> None:
    """The engine's process dies in the middle of a stream."""
    reader, writer = await here.send(CHAT, HI | {"stream": True}, ACME)
    (name,) = await here.calls(1)
    here.replica.start(name)
    here.replica.say(name, "a")
    while b'"a"' not in await reader.readline():
        pass
    here.replica.lose(name)
    while b"engine_lost" not in await reader.readline():
        pass
    await close(writer)


async def unread(here: Site) -> None:
    """A client that never reads, and is given up after the write time-out."""
    _, writer = await here.send(CHAT, HI | {"stream": True}, ACME)
    (name,) = await here.calls(1)
    here.replica.start(name)
    text = "x" * 65_536
    while name not in here.replica.cancelled:
        here.replica.say(name, text)
        await asyncio.sleep(0.01)
    await close(writer)


@pytest.mark.parametrize("end", [cut, failed, lost, unread])
def test_however_a_request_ends_its_slot_is_free_within_a_second_rate_limits_02(
    end: Callable[[Site], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        settings = GatewaySettings(tenant=SETTINGS.tenant, write_timeout=0.5)
        rates = RateLimitSettings(tenants={"acme": Limits(concurrent_requests=1)})
        async with site(
            settings=settings, rate_limits=LimitTable(rates), limit_store=MemoryLimits()
        ) as here:
            await end(here)
            here.replica.script = say_hello
            # A busy machine may take longer, but what is not settled waits for its lease.
            async with asyncio.timeout(LEASE_S / 2):
                while (await ask(here)).status_code == 429:
                    await asyncio.sleep(0.02)

    run(scenario())


def test_without_max_tokens_a_default_is_reserved_and_the_whole_context_allowed() -> None:
    async def scenario() -> None:
        async with limited(replica=talking(), tokens_per_minute=CONTEXT, reserve_tokens=20) as here:
            open_ = await ask(here)
            assert of_limits(open_.headers)["remaining-tokens"] == str(CONTEXT - 2 - 20)
            (sent,) = here.replica.requests.values()
            assert sent.sampling.max_tokens == CONTEXT - 2

    run(scenario())


def test_who_asks_for_no_length_is_not_refused_for_the_default_one() -> None:
    async def scenario() -> None:
        async with limited(replica=talking(), tokens_per_minute=10, reserve_tokens=20) as here:
            fits = await ask(here)
            assert (fits.status_code, of_limits(fits.headers)["remaining-tokens"]) == (200, "0")
            told = await ask(here, max_tokens=20)
            assert (told.status_code, "too large" in told.json()["error"]["message"]) == (429, True)
        async with limited(replica=talking(), tokens_per_minute=1, reserve_tokens=20) as here:
            assert (await ask(here)).status_code == 429, "its prompt has two tokens"

    run(scenario())


def test_each_choice_is_reserved_for() -> None:
    async def scenario() -> None:
        async with limited(replica=talking(), tokens_per_minute=6000) as here:
            answer = await ask(here, n=3, max_tokens=100)
            assert of_limits(answer.headers)["remaining-tokens"] == str(6000 - 2 - 300)

    run(scenario())


@pytest.mark.spec("M4")
def test_an_answer_counts_for_what_it_used_and_a_failure_of_ours_for_nothing() -> None:
    def refuse(replica: FakeReplica, request: EngineRequest) -> None:
        replica.fail(request.id, "the queue is full", "queue_full")

    async def scenario() -> None:
        replica, limit = talking(), CONTEXT - 2
        async with limited(replica=replica, tokens_per_minute=limit) as here:
            assert (await ask(here, max_tokens=400)).status_code == 200
            replica.script = refuse
            assert (await ask(here, max_tokens=400)).status_code == 503
            refused = await ask(here, max_tokens=CONTEXT - 2)
            assert refused.status_code == 429
            left = int(of_limits(refused.headers)["remaining-tokens"])
            assert limit - 5 <= left <= limit, "2 tokens of the prompt and 3 of the answer"

    run(scenario())


def test_who_leaves_while_the_store_is_asked_gives_back_what_it_granted() -> None:
    class Slow(MemoryLimits):
        """Answers `reserve` only when it is let."""

        def __init__(self) -> None:
            super().__init__()
            self.asked, self.may = asyncio.Event(), asyncio.Event()

        async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
            self.asked.set()
            await self.may.wait()
            return await super().reserve(claim, now)

    async def scenario() -> None:
        store = Slow()
        rates = RateLimitSettings(
            tenants={"acme": Limits(concurrent_requests=1, tokens_per_minute=600)}
        )
        async with site(
            settings=SETTINGS, rate_limits=LimitTable(rates), limit_store=store
        ) as here:
            _, writer = await here.send(CHAT, HI | {"max_tokens": 500}, ACME)
            await store.asked.wait()
            reset(writer)
            await close(writer)
            await until(lambda: here.num_connections == 0)
            store.may.set()
            here.replica.script = say_hello
            await until(lambda: not here.gateway._flights.num_open)
            answer = await ask(here, max_tokens=500)
            assert answer.status_code == 200
            assert len(here.replica.requests) == 1, "the one that left was never sent"

    run(scenario())


def test_a_limit_of_the_tenant_is_a_429_where_a_full_server_is_a_503() -> None:
    def refuse(replica: FakeReplica, request: EngineRequest) -> None:
        replica.fail(request.id, "the queue is full", "queue_full")

    async def scenario() -> None:
        replica = FakeReplica()
        replica.script = refuse
        async with limited(replica=replica, requests_per_minute=1) as here:
            full = await ask(here)
            assert (full.status_code, full.json()["error"]["code"]) == (503, "queue_full")
            assert of_limits(full.headers)["remaining-requests"] == "0"
            assert (await ask(here)).status_code == 429

    run(scenario())


def test_an_error_event_of_a_429_is_never_inside_a_stream() -> None:
    async def scenario() -> None:
        async with limited(tokens_per_minute=10) as here:
            refused = await ask(here, stream=True, max_tokens=50)
            assert refused.headers["content-type"] == "application/json"
            assert json.loads(refused.content)["error"]["type"] == "tokens"

    run(scenario())


def test_a_reload_changes_the_limits_and_keeps_the_counts() -> None:
    async def scenario() -> None:
        table = LimitTable(RateLimitSettings(tenants={"acme": Limits(requests_per_minute=3)}))
        async with site(
            settings=SETTINGS, replica=talking(), rate_limits=table, limit_store=MemoryLimits()
        ) as here:
            for _ in range(3):
                assert (await ask(here)).status_code == 200
            assert (await ask(here)).status_code == 429
            table.replace(RateLimitSettings(tenants={"acme": Limits(requests_per_minute=5)}))
            answer = await ask(here)
            assert answer.status_code == 200
            assert of_limits(answer.headers)["limit-requests"] == "5"
            assert of_limits(answer.headers)["remaining-requests"] == "1"

    run(scenario())
