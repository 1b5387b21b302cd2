"""One record a request also where another server answers, and its limits settled."""

import asyncio
import time
from typing import Any

import pytest

from headway.core.tenancy.limits import LEASE_S, Claim, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.books import NoLimits
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.upstream.settings import Kind, Timeouts
from tests.unit.service.gateway.fakes import close, post, run, until
from tests.unit.service.gateway.test_records import Kept, Prices
from tests.upstreams import CHAT, HI, Pen, Seen, chunk, front, hello, upstream

GATEWAY = GatewaySettings(tenant=("acme:vip:secret-of-acme",))
KEY = {"authorization": "Bearer secret-of-acme"}
LIMITED = RateLimitSettings(default=Limits(tokens_per_minute=100_000))


def books(kept: Kept, limits: NoLimits | None = None) -> Books:
    return Books(limits or NoLimits(), kept, Prices(), time.time, "gateway-1")


class Settled(NoLimits):
    """Grants, and notes what was taken and used."""

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.used: list[int] = []

    async def reserve(self, claim: Claim, now: float) -> Any:
        self.reserved.append(claim.tokens)
        return await super().reserve(claim, now)

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        self.used.append(tokens)


async def without_usage(seen: Seen, pen: Pen) -> None:
    """A script: two tokens, and nobody says that there were two."""
    await pen.begin()
    await pen.events(chunk("a"), chunk("b"), chunk(finish="length"), "[DONE]")
    await pen.end()


async def cut(seen: Seen, pen: Pen) -> None:
    """A script: three tokens, then the end of the connection."""
    await pen.begin()
    await pen.events(chunk("a"), chunk("b"), chunk("c"))
    pen.close()


async def gone(seen: Seen, pen: Pen) -> None:
    """A script: the connection breaks before an answer."""
    pen.reset()


@pytest.mark.spec("A9")
@pytest.mark.parametrize("is_streamed", [True, False])
def test_what_the_upstream_counts_is_recorded(*, is_streamed: bool) -> None:
    async def scenario() -> None:
        kept, limits = Kept(), Settled()
        async with upstream(hello) as theirs:
            made = front([theirs], gateway=GATEWAY, limits=LIMITED, books=books(kept, limits))
            async with made as here:
                body = {**HI, "max_tokens": 20, "stream": is_streamed, "n": 1}
                found = await here.client.post(CHAT, json=body, headers=KEY)
                assert found.status_code == 200
                record = await kept.one()
                assert (record.outcome, record.finish) == ("ok", "stop")
                assert (record.prompt_tokens, record.completion_tokens) == (7, 3)
                assert record.sent_tokens == 3
                assert record.cost == 703
                assert record.replica == theirs.url.removeprefix("http://")
                assert (record.failovers, record.num_choices, record.max_tokens) == (0, 1, 20)
                assert not record.is_estimated
                assert limits.used == [10]
                assert limits.reserved[0] > 20

    run(scenario())


def test_an_estimate_says_that_it_is_one() -> None:
    async def scenario() -> None:
        kept = Kept()
        async with (
            upstream(without_usage) as theirs,
            front([theirs], gateway=GATEWAY, limits=LIMITED, books=books(kept)) as here,
        ):
            await here.client.post(CHAT, json={**HI, "stream": True}, headers=KEY)
            record = await kept.one()
            assert record.is_estimated
            assert (record.completion_tokens, record.finish) == (2, "length")

    run(scenario())


def test_a_stream_that_breaks_off_is_one_failed_record_of_what_was_sent() -> None:
    async def scenario() -> None:
        kept, limits = Kept(), Settled()
        async with (
            upstream(cut) as theirs,
            front([theirs], gateway=GATEWAY, limits=LIMITED, books=books(kept, limits)) as here,
        ):
            await here.client.post(CHAT, json={**HI, "stream": True}, headers=KEY)
            record = await kept.one()
            assert (record.outcome, record.error_code) == ("error", "upstream_broken")
            assert (record.completion_tokens, record.sent_tokens) == (3, 3)
            assert record.is_estimated
            assert len(limits.used) == 1

    run(scenario())


def test_a_request_that_went_on_elsewhere_says_so() -> None:
    async def scenario() -> None:
        kept = Kept()
        async with upstream(gone) as one, upstream(hello) as two:
            made = front([one, two], gateway=GATEWAY, limits=LIMITED, books=books(kept))
            async with made as here:
                while not one.seen:
                    kept.told.clear()
                    await here.client.post(CHAT, json=HI, headers=KEY)
                record = await kept.one()
                assert record.outcome == "ok"
                assert record.failovers == 1
                assert record.replica == two.url.removeprefix("http://")

    run(scenario())


def test_a_client_that_leaves_pays_for_what_was_made() -> None:
    async def half(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.events(chunk("a"), chunk("Hel"))
        await pen.gone()

    async def scenario() -> None:
        kept, limits = Kept(), Settled()
        async with (
            upstream(half) as theirs,
            front([theirs], gateway=GATEWAY, limits=LIMITED, books=books(kept, limits)) as here,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(post(CHAT, {**HI, "stream": True}, KEY))
            await reader.readuntil(b"Hel")
            await close(writer)
            record = await kept.one()
            assert record.outcome == "cancelled"
            assert record.completion_tokens == 2
            await until(lambda: len(limits.used) == 1)
            assert limits.used[0] >= 2

    run(scenario())


def test_a_tokens_limit_is_reserved_by_the_upstreams_own_count() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        if seen.path == "/tokenize":
            return await pen.answer(200, {"count": 1234, "max_model_len": 4096, "tokens": []})
        await hello(seen, pen)

    async def scenario() -> None:
        kept, limits = Kept(), Settled()
        async with upstream(script) as theirs:
            made = front(
                [theirs], gateway=GATEWAY, limits=LIMITED, books=books(kept, limits), kind=Kind.VLLM
            )
            async with made as here:
                body = {**HI, "max_tokens": 20}
                assert (await here.client.post(CHAT, json=body, headers=KEY)).status_code == 200
                assert limits.reserved == [1254]
                assert [seen.path for seen in theirs.seen] == ["/tokenize", CHAT]

    run(scenario())


class Moody:
    """A script that ends as it is told, and well once the test is through with it."""

    def __init__(self, end: str) -> None:
        self.end = end

    async def __call__(self, seen: Seen, pen: Pen) -> None:
        """Three tokens, where there are any, and then that end."""
        if not self.end:
            return await hello(seen, pen)
        if self.end == "refuses":
            return await pen.answer(400, {"error": {"message": "no"}})
        if self.end in {"closes", "resets", "falls silent"}:
            await pen.begin()
            await pen.events(chunk("a"), chunk("b"), chunk("c"))
        if self.end.endswith("resets"):
            pen.reset()
        elif self.end == "closes":
            pen.close()
        else:
            await pen.gone()


@pytest.mark.parametrize(
    "end", ["closes", "resets", "falls silent", "never answers", "at once resets", "refuses"]
)
def test_rate_limits_02_streaming_sse_02_slot_and_reservation_come_back_from_any_end(
    end: str,
) -> None:
    times = Timeouts(first_token=0.3, between_chunks=0.3, total=5.0)
    tight = Limits(concurrent_requests=1, tokens_per_minute=1000)

    async def scenario() -> None:
        script = Moody(end)
        kept = Kept()
        made = Books(MemoryLimits(), kept, Prices(), time.time, "gateway-1")
        async with (
            upstream(script) as theirs,
            front(
                [theirs],
                gateway=GATEWAY,
                books=made,
                limits=RateLimitSettings(default=tight),
                timeouts=times,
            ) as here,
        ):
            here.client.headers.update(KEY)
            first = await here.chat(stream=True, max_tokens=900)
            assert first.status_code in {200, 400, 502, 504}
            script.end = ""
            # The slot is free soon, and of 900 reserved tokens only those that were sent are gone:
            # another 900 would not fit otherwise.
            async with asyncio.timeout(LEASE_S / 2):
                while (second := await here.chat(max_tokens=900)).status_code == 429:
                    assert second.json()["error"]["type"] == "concurrency", second.text
                    await asyncio.sleep(0.02)
            assert second.status_code == 200, second.text
            outcomes = [each.outcome for each in kept.told]
            assert outcomes[0] == ("invalid" if end == "refuses" else "error")
            assert outcomes[-1] == "ok"

    run(scenario())
