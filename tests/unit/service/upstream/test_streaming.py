"""A streamed answer from one connection to another: straight through, or as fast as it is read."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headway.core.base.clock import ManualClock
from headway.core.base.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from headway.core.base.units import Seconds
from headway.core.messages.path import Event
from headway.service.upstream.answers import Shown, StreamedAnswer
from headway.service.upstream.body import Body, Take
from headway.service.upstream.ends import Gained, Sent
from headway.service.upstream.streaming import Streaming
from tests.unit.service.gateway.fakes import run, until
from tests.upstreams import chunk, events_of

DONE = b"data: [DONE]\n\n"


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


class Answered:
    """The upstream's side: what it sends, as a Reply gives it."""

    def __init__(self) -> None:
        self.body = Body()

    async def read(self) -> bytes:
        return await self.body.read()

    async def pump(self, take: Take) -> bool:
        return await self.body.pump(take)

    def sends(self, *pieces: bytes, is_whole: bool = False) -> None:
        """In one turn of the loop."""
        for piece in pieces:
            self.body.put(piece)
        self.body.is_whole = is_whole
        self.body.told()


class Client:
    """Outlet and Witness."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.num_waited = 0
        self.tokens: list[int] = []
        self.counted: list[tuple[int, int]] = []
        self.is_slow = False
        self.reads = asyncio.Event()
        self.reads.set()

    def push(self, data: bytes, num_tokens: int) -> bool:
        if self.is_slow:
            return False
        self.sent.append(data)
        self.tokens.append(num_tokens)
        return True

    async def stream(self, data: bytes, num_tokens: int, *, is_last: bool) -> None:
        await self.reads.wait()
        self.sent.append(data)
        self.num_waited += 1
        self.tokens.append(num_tokens)

    async def whole(self, body: bytes, num_tokens: int) -> None:
        raise AssertionError("it is streamed")

    def begun(self) -> None:
        raise AssertionError("it is streamed")

    def reserved_for(self, max_tokens: int, asked: int | None) -> int:
        raise AssertionError("it is on its way")

    async def sized(self, prompt_tokens: int, max_tokens: int) -> None:
        raise AssertionError("it is on its way")

    def forwarded(self, sent: Sent) -> None:
        raise AssertionError("it is on its way")

    def saw(self, event: Event) -> None:
        raise AssertionError("it has no end here")

    @property
    def gained(self) -> Gained:
        return self._gained

    def _gained(self, request_id: str, choice: int, num_tokens: int, at: Seconds) -> None:
        assert request_id == "r"
        self.counted.append((choice, num_tokens))

    @property
    def text(self) -> str:
        """All that was sent."""
        chunks = events_of(b"".join(self.sent).decode())
        return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks)


Scenario = Callable[[Answered, Client, Streaming], Coroutine[Any, Any, None]]


def streamed(scenario: Scenario) -> None:
    async def whole() -> None:
        theirs, client = Answered(), Client()
        answer = StreamedAnswer(Shown("ours", "m", include_usage=False, num_choices=1), 1)
        await scenario(theirs, client, Streaming("r", answer, client, client, ManualClock()))

    run(whole())


async def begun(theirs: Answered, streaming: Streaming, between_s: float | None = None) -> Any:
    theirs.sends(event(chunk("a")))
    await streaming.begin(theirs)
    task = asyncio.create_task(streaming.run(theirs, between_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def test_pieces_leave_in_the_turn_that_brings_them_and_are_counted() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        assert (client.text, streaming.has_begun) == ("a", True)
        for number, letter in enumerate("bcd", 1):
            theirs.sends(event(chunk(letter)))
            assert client.text == "abcd"[: number + 1]
        theirs.sends(event(chunk("e")) + event(chunk(finish="stop")) + DONE)
        await task
        assert (client.text, client.num_waited) == ("abcde", 0)
        assert (client.counted, client.tokens[-1]) == ([(0, 1)] * 5, 5)

    streamed(scenario)


def test_what_a_slow_client_cannot_take_is_sent_once_it_reads_and_in_order() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        client.is_slow = True
        client.reads.clear()
        theirs.sends(event(chunk("b")))
        await asyncio.sleep(0)
        theirs.sends(event(chunk("c")))
        theirs.sends(event(chunk("d")))
        assert client.text == "a"
        client.is_slow = False
        client.reads.set()
        theirs.sends(event(chunk(finish="stop")), DONE)
        await task
        assert (client.text, client.num_waited) == ("abcd", 1)
        assert client.counted == [(0, 1)] * 4

    streamed(scenario)


def test_the_first_event_waits_for_a_client_that_cannot_take_it() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        client.is_slow = True
        task = await begun(theirs, streaming)
        assert (client.text, client.num_waited, streaming.has_begun) == ("a", 1, True)
        theirs.sends(event(chunk(finish="stop")) + DONE)
        await task

    streamed(scenario)


def test_an_error_event_lets_out_what_came_before_it() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        theirs.sends(event(chunk("b")) + event({"error": {"message": "no", "code": 500}}))
        with pytest.raises(UpstreamError):
            await task
        assert client.text == "ab"

    streamed(scenario)


def test_an_error_event_that_comes_first_has_begun_nothing() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        theirs.sends(event({"error": {"message": "no", "code": 500}}))
        await streaming.begin(theirs)
        with pytest.raises(UpstreamError):
            await streaming.run(theirs, None)
        assert (streaming.has_begun, client.sent) == (False, [])

    streamed(scenario)


def test_a_connection_that_breaks_lets_out_what_had_come() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        theirs.body.put(event(chunk("b")))
        theirs.body.lost = UpstreamBroken("it broke", Seconds(1.0))
        theirs.body.told()
        with pytest.raises(UpstreamBroken, match="it broke"):
            await task
        assert client.text == "ab"

    streamed(scenario)


def test_an_end_without_a_blank_line_is_read_too() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        theirs.sends(event(chunk("b"))[:-2], is_whole=True)
        await task
        assert client.text == "ab"

    streamed(scenario)


def test_comments_do_not_put_off_the_time_out_between_events() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming, between_s=0.05)
        theirs.sends(b": still there\n\n")
        await until(task.done)
        with pytest.raises(UpstreamTimeout, match="the next part"):
            await task
        assert client.text == "a"

    streamed(scenario)


def test_who_is_cancelled_takes_nothing_more() -> None:
    async def scenario(theirs: Answered, client: Client, streaming: Streaming) -> None:
        task = await begun(theirs, streaming)
        task.cancel()
        await asyncio.wait((task,))
        theirs.sends(event(chunk("b")))
        assert client.text == "a"

    streamed(scenario)
