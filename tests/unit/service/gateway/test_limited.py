"""/tokenize and /detokenize are requests of their tenant, without tokens."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from headway.core.tenancy.limits import Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    HI,
    CharTokenizer,
    Site,
    run,
    say_hello,
    site,
    until,
)

ACME = {"Authorization": "Bearer sk-acme"}
OTHER = {"Authorization": "Bearer sk-other"}
CALLS = {
    "/tokenize": {"prompt": "Hello"},
    "/v1/tokenize": HI,
    "/detokenize": {"tokens": [5]},
    "/v1/detokenize": {"tokens": [5]},
}


@asynccontextmanager
async def limited(**limits: int) -> AsyncIterator[Site]:
    """A gateway where acme has these limits and nobody else has any."""
    rates = RateLimitSettings(tenants={"acme": Limits(**limits)})
    async with site(
        settings=GatewaySettings(tenant=("acme:standard:sk-acme", "other:vip:sk-other")),
        rate_limits=LimitTable(rates),
        limit_store=MemoryLimits(),
    ) as here:
        here.replica.script = say_hello
        yield here


async def ask(here: Site, path: str, key: dict[str, str] = ACME) -> httpx.Response:
    return await here.client.post(path, json=CALLS.get(path, HI), headers=key)


@pytest.mark.spec("A2")
def test_each_is_one_request_and_no_tokens_and_says_how_the_limits_stand() -> None:
    async def scenario() -> None:
        async with limited(requests_per_minute=5, tokens_per_minute=6000) as here:
            for left, path in zip((4, 3, 2, 1), CALLS, strict=True):
                answer = await ask(here, path)
                assert answer.status_code == 200
                assert answer.headers["x-ratelimit-limit-requests"] == "5"
                assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
                assert answer.headers["x-ratelimit-remaining-tokens"] == "6000"
            assert (await ask(here, CHAT)).headers["x-ratelimit-remaining-requests"] == "0"
            other = await ask(here, "/tokenize", OTHER)
            assert not [name for name in other.headers if name.startswith("x-ratelimit")]

    run(scenario())


@pytest.mark.parametrize("path", CALLS)
def test_one_too_many_is_the_same_429_as_of_a_chat(path: str) -> None:
    async def scenario() -> None:
        async with limited(requests_per_minute=1) as here:
            assert (await ask(here, path)).status_code == 200
            refused, chat = await ask(here, path), await ask(here, CHAT)
            assert (refused.status_code, chat.status_code) == (429, 429)
            assert set(refused.headers) == set(chat.headers)
            errors = [each.json()["error"] for each in (refused, chat)]
            assert [each["type"] for each in errors] == ["requests", "requests"]
            assert "1 requests a minute" in errors[0]["message"]
            assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
            assert (await ask(here, path, OTHER)).status_code == 200
            assert await here.metric("headway_limit_denials_total") == {
                '{kind="requests",slo_class="standard"}': 2
            }

    run(scenario())


@pytest.mark.spec("M4")
def test_one_that_is_worked_on_takes_a_slot_and_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    encode = CharTokenizer.encode

    def slow(
        self: CharTokenizer, text: str, *, add_special: bool, parse_special: bool
    ) -> Sequence[int]:
        if text == "Hello":
            begun.set()
            assert may_end.wait(60)
        return encode(self, text, add_special=add_special, parse_special=parse_special)

    async def scenario() -> None:
        async with limited(concurrent_requests=1) as here:
            asked = asyncio.create_task(ask(here, "/tokenize"))
            await until(begun.is_set)
            for path in (CHAT, "/detokenize"):
                refused = await ask(here, path)
                assert refused.json()["error"]["type"] == "concurrency", refused.text
            may_end.set()
            assert (await asked).status_code == 200
            assert (await ask(here, CHAT)).status_code == 200

    monkeypatch.setattr(CharTokenizer, "encode", slow)
    run(scenario())


def test_one_that_fails_gives_its_slot_back_too() -> None:
    async def scenario() -> None:
        async with limited(concurrent_requests=1, requests_per_minute=3) as here:
            for body in ({"prompt": 1}, {"model": "absent", "prompt": "Hi"}):
                answer = await here.client.post("/tokenize", json=body, headers=ACME)
                assert answer.status_code in {400, 404}
            left = (await ask(here, "/tokenize")).headers["x-ratelimit-remaining-requests"]
            assert left == "0", "they were requests"

    run(scenario())
