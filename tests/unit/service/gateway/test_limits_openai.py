"""What OpenAI's own client makes of a refusal: it waits as long as it is told, or not at all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import openai
import pytest

from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from tests.no_tls import NO_TLS
from tests.unit.service.gateway.fakes import FakeReplica, run, say_hello, site


class Refuses(MemoryLimits):
    """Refuses the first call only."""

    def __init__(self, kind: LimitKind, retry_after_s: float | None) -> None:
        super().__init__()
        self._refusal: Denied | None = Denied(kind=kind, retry_after_s=retry_after_s, limit=5)

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """See above."""
        refusal, self._refusal = self._refusal, None
        return await super().enter(claim, now) if refusal is None else refusal


@asynccontextmanager
async def calling(
    kind: LimitKind, retry_after_s: float | None, statuses: list[int]
) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway that refuses once; it notes the status of each of its tries."""

    async def note(answer: httpx2.Response) -> None:
        statuses.append(answer.status_code)

    replica = FakeReplica()
    replica.script = say_hello
    table = LimitTable(RateLimitSettings(default=Limits(requests_per_minute=5)))
    store = Refuses(kind, retry_after_s)
    async with site(replica=replica, rate_limits=table, limit_store=store) as here:
        http = httpx2.AsyncClient(event_hooks={"response": [note]}, verify=NO_TLS)
        url = f"http://127.0.0.1:{here.port}/v1"
        async with openai.AsyncOpenAI(api_key="sk", base_url=url, http_client=http) as client:
            yield client


async def ask(client: openai.AsyncOpenAI) -> str | None:
    answer = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}]
    )
    return answer.choices[0].message.content


@pytest.mark.spec("A2")
def test_it_tries_again_after_the_milliseconds_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited, statuses = list[float](), list[int]()
    sleep = anyio.sleep

    async def noted(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    async def scenario() -> None:
        async with calling(LimitKind.REQUESTS, 0.123, statuses) as client:
            monkeypatch.setattr(anyio, "sleep", noted)
            assert await ask(client) == "Hello"

    run(scenario())
    assert statuses == [429, 200]
    assert [each for each in waited if each] == [0.123]


@pytest.mark.parametrize(
    ("kind", "retry_after_s", "code"),
    [
        (LimitKind.TOKENS, None, "rate_limit_exceeded"),
        (LimitKind.BUDGET, 86_400.0, "insufficient_quota"),
    ],
)
def test_it_does_not_try_again_where_that_is_of_no_use(
    kind: LimitKind, retry_after_s: float | None, code: str
) -> None:
    statuses = list[int]()

    async def scenario() -> None:
        async with calling(kind, retry_after_s, statuses) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await ask(client)
            assert refused.value.code == code

    run(scenario())
    assert statuses == [429]
