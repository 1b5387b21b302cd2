"""The moment in which a first token and the fixed answer meet."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.core.base.errors import UpstreamTimeout
from headway.core.messages.path import Event, Tokens
from headway.service.gateway.attempt import Attempt, Ways
from headway.service.gateway.forwarded import Beginning
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat

AFTER_S = 0.02
Work = Callable[[Callable[[], None]], Awaitable[None]]


class Bench:
    """An attempt over a model that does as the test says; what the client got."""

    def __init__(self, work: Work) -> None:
        """work  of the model; calls what it is given when a token leaves"""
        self.said: list[str] = []
        self._work = work
        self._beginning: Beginning | None = None
        stub: Any = SimpleNamespace(
            answer_instead=lambda _: ("Later.", AFTER_S),
            answered_instead=lambda routed: routed,
            tell=lambda *_: None,
            routed=lambda *_: None,
            helper=lambda _: None,
            id="r",
        )
        ways = Ways(
            makes=lambda *_: cast(Any, None),
            take=self._take,
            forward=cast(Any, None),
            outlet=self._outlet,
            check=cast(Any, None),
        )
        self._attempt = Attempt(stub, stub, stub, ways)

    async def run(self) -> None:
        """The whole request."""
        relay = SimpleNamespace(run=self._relayed)
        served = SimpleNamespace(relay=relay, meter=None, directory=SimpleNamespace(facts=None))
        request = parse_chat(b'{"messages": [{"role": "user", "content": "Hi"}]}', ApiLimits())
        routed: Any = SimpleNamespace(
            request=request,
            served=served,
            route=None,
            ask=SimpleNamespace(slo_class=None),
            choice=SimpleNamespace(cascade=None),
        )
        await self._attempt.run(routed)

    async def _relayed(self, *_: object) -> None:
        await self._work(self._token)

    def _token(self) -> None:
        assert self._beginning is not None
        self.said.append("token")
        self._beginning.left()

    def _outlet(self, beginning: Beginning) -> Any:
        self._beginning = beginning

    async def _take(self, answer: object, event: Event, prompt: int) -> None:
        if isinstance(event, Tokens):
            self.said.append(event.text)


@pytest.mark.spec("J6")
def test_a_token_that_leaves_in_the_turn_in_which_its_time_is_over_is_followed_by_no_text() -> None:
    async def work(token: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def comes() -> None:
            token()
            ended.set_result(None)

        due = loop.call_later(AFTER_S, comes)  # after the timer of the fixed answer
        while loop.time() < due.when():
            pass  # so that both are due in one turn
        await ended

    bench = Bench(work)
    asyncio.run(bench.run())
    assert bench.said == ["token"]


@pytest.mark.spec("J6")
def test_a_token_that_leaves_while_the_work_is_ended_is_followed_by_an_error_and_no_text() -> None:
    async def work(token: Callable[[], None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            token()

    bench = Bench(work)
    with pytest.raises(UpstreamTimeout):
        asyncio.run(bench.run())
    assert bench.said == ["token"]


def test_without_a_token_in_time_the_text_is_the_answer() -> None:
    async def work(token: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    bench = Bench(work)
    asyncio.run(bench.run())
    assert bench.said == ["Later."]
