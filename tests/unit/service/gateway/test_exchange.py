"""An answer that is given up before its header could leave."""

import asyncio
from collections.abc import Iterable
from typing import Any

from headway.core.base.clock import ManualClock
from headway.service.gateway.http import DIRECT, Exchange
from headway.service.gateway.stream import SseStream
from tests.unit.service.gateway.fakes import run


class Connection:
    """Takes messages of an answer, each once its writing is not paused."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.waiting = asyncio.Event()
        self.may_write = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Never anything."""
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    async def send(self, message: Any) -> None:
        """Wait as a server does for a client that does not read, then write at once."""
        self.waiting.set()
        await self.may_write.wait()
        self.sent.append(message["type"])
        self.headers += message.get("headers", [])

    def exchange(self, method: str = "GET", **more: Any) -> Exchange:
        """A request without a body on this connection."""
        scope = {"method": method, "path": "/", "query_string": b"", "headers": [], **more}
        return Exchange(scope, self.receive, self.send)


def test_a_stream_has_not_begun_while_its_header_waits() -> None:
    async def scenario() -> None:
        connection = Connection()
        exchange = connection.exchange()
        stream = SseStream(exchange, ManualClock(), 0.0)
        sending = asyncio.create_task(stream.send(b"data: 1\n\n"))
        await connection.waiting.wait()
        sending.cancel()
        await asyncio.wait((sending,))
        assert (stream.has_begun, exchange.is_started) == (False, False)
        connection.may_write.set()
        await exchange.answer(503, b"{}")
        assert connection.sent == ["http.response.start", "http.response.body"]
        assert exchange.is_started

    run(scenario())


def test_a_stream_that_has_begun_sends_its_header_once() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.may_write.set()
        stream = SseStream(connection.exchange(), ManualClock(), 0.0)
        await stream.send(b"data: 1\n\n")
        assert stream.has_begun
        await stream.send(b"data: 2\n\n")
        assert connection.sent == ["http.response.start", *["http.response.body"] * 2]

    run(scenario())


class Direct:
    """Takes what may leave at once."""

    def __init__(self) -> None:
        self.begun: list[tuple[list[tuple[bytes, bytes]], bytes]] = []
        self.pushed: list[bytes] = []
        self.may_write = True

    def take_body(self) -> bytes | None:
        return None

    def begin(self, headers: Iterable[tuple[bytes, bytes]], data: bytes) -> bool:
        if self.may_write:
            self.begun.append((list(headers), data))
        return self.may_write

    def push(self, data: bytes) -> bool:
        if self.may_write:
            self.pushed.append(data)
        return self.may_write


def test_header_and_first_event_leave_as_one_and_further_ones_at_once() -> None:
    async def scenario() -> None:
        direct = Direct()
        exchange = Connection().exchange("POST", **{DIRECT: direct})
        exchange.add_header("x-a", "1")
        stream = SseStream(exchange, ManualClock(), 0.0)
        assert stream.push(b"1")
        assert (stream.has_begun, exchange.is_started) == (True, True)
        ((headers, first),) = direct.begun
        assert first == b"1"
        assert headers[0] == (b"content-type", b"text/event-stream; charset=utf-8")
        assert [name for name, _ in headers[-2:]] == [b"x-a", b"x-request-id"]
        assert stream.push(b"2")
        direct.may_write = False
        assert not stream.push(b"3")
        assert direct.pushed == [b"2"]

    run(scenario())


def test_what_cannot_leave_at_once_waits_and_nothing_overtakes_it() -> None:
    async def scenario() -> None:
        connection, direct = Connection(), Direct()
        direct.may_write = False
        stream = SseStream(connection.exchange("POST", **{DIRECT: direct}), ManualClock(), 0.0)
        sending = asyncio.create_task(stream.send(b"1"))
        await connection.waiting.wait()
        direct.may_write = True
        assert not stream.push(b"2")
        connection.may_write.set()
        await sending
        assert connection.sent == ["http.response.start", "http.response.body"]
        assert stream.push(b"2")

    run(scenario())


def test_without_a_connection_of_ours_nothing_leaves_at_once() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.may_write.set()
        stream = SseStream(connection.exchange(), ManualClock(), 0.0)
        await stream.send(b"1")
        assert not stream.push(b"2")

    run(scenario())


def test_headers_that_were_added_leave_with_the_answer_once_and_as_ascii() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.may_write.set()
        exchange = connection.exchange()
        exchange.add_header("x-a", "1")
        exchange.add_header("x-b", "中\r\nx-c: 3")
        exchange.add_header("x-a", "2")
        await exchange.answer(200, b"{}")
        added = [header for header in connection.headers if header[0].startswith(b"x-")]
        assert added[:2] == [(b"x-a", b"2"), (b"x-b", rb"\u4e2d??x-c: 3")]
        assert added[2][0] == b"x-request-id"

    run(scenario())


def test_an_answer_without_content_says_nothing_of_it_and_keeps_the_connection() -> None:
    async def scenario() -> None:
        connection = Connection()
        connection.may_write.set()
        await connection.exchange("POST").answer(204, b"")
        assert [name for name, _ in connection.headers] == [b"x-request-id"]

    run(scenario())
