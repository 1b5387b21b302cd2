"""The HTTP client: connections used again, answers read as they come, nothing followed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headway.core.base.errors import UpstreamBroken, UpstreamTimeout
from headway.service.upstream.http1 import HttpClient, NotConnected, Reply
from headway.service.upstream.settings import Endpoint
from tests.unit.service.gateway.fakes import run, until
from tests.upstreams import FakeUpstream, Pen, Script, Seen, upstream

POST = "POST /v1/x HTTP/1.1\r\nx-a: 1\r\n"


def asking(script: Script, scenario: Callable[[HttpClient, FakeUpstream], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with upstream(script) as theirs:
            client = HttpClient(Endpoint.of(theirs.url), None)
            try:
                await scenario(client, theirs)
            finally:
                client.close()

    run(whole())


async def whole(client: HttpClient) -> tuple[Reply, bytes]:
    reply = await client.send(POST, b"{}", 2.0)
    try:
        return reply, await reply.whole(1000)
    finally:
        reply.close()


def raw(*pieces: bytes, ends: bool = False) -> Script:
    async def script(seen: Seen, pen: Pen) -> None:
        for piece in pieces:
            await pen.raw(piece)
        if ends:
            pen.close()

    return script


def test_an_answer_is_read_and_its_connection_used_again() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(201, {"a": 1}, "X-Told: b")

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        for _ in range(3):
            reply, body = await whole(client)
            assert (reply.status, body) == (201, b'{"a": 1}')
            assert reply.headers["x-told"] == "b"
        assert theirs.num_connections == 1
        assert theirs.seen[0].header("host") == [theirs.url.removeprefix("http://")]
        assert theirs.seen[0].body == b"{}"

    asking(script, scenario)


def test_a_connection_that_was_closed_while_idle_costs_no_request() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(200, {})
        pen.close()

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        for _ in range(5):
            assert (await whole(client))[0].status == 200
        assert len(theirs.seen) == 5

    asking(script, scenario)


def test_an_answer_that_is_cut_raises_after_what_had_come() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.piece(b"half")
        pen.close()

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        reply = await client.send(POST, b"{}", 2.0)
        assert await reply.read() == b"half"
        with pytest.raises(UpstreamBroken):
            await reply.read()
        reply.close()

    asking(script, scenario)


@pytest.mark.parametrize(
    "told",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_whole_answer_is_broken(told: bytes) -> None:
    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        with pytest.raises(UpstreamBroken):
            await whole(client)

    asking(raw(told, ends=True), scenario)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        assert (await whole(client))[1] == b"abc"
        assert (await whole(client))[1] == b"abc"
        assert theirs.num_connections == 2

    asking(raw(b"HTTP/1.1 200 OK\r\n\r\nabc", ends=True), scenario)


def test_an_announcement_before_the_answer_is_skipped() -> None:
    told = (
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    )

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        reply, body = await whole(client)
        assert (reply.status, body) == (200, b"hi")
        assert "link" not in reply.headers

    asking(raw(told), scenario)


@pytest.mark.parametrize("is_one_write", [True, False])
def test_an_answer_that_nobody_asked_for_is_never_taken_for_the_next(*, is_one_write: bool) -> None:
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    pieces = [good + b"ok" + good + b"no"] if is_one_write else [good + b"ok", good + b"no"]

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        for _ in range(3):
            assert (await whole(client))[1] == b"ok"
            await until(lambda: not any(each.is_usable for each in client._idle))

    asking(raw(*pieces), scenario)


def test_an_answer_over_the_limit_is_refused() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.answer(200, b"x" * 2000)

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        with pytest.raises(UpstreamBroken, match="over 1000 bytes"):
            await whole(client)

    asking(script, scenario)


def test_a_reader_that_pauses_gets_all_of_a_long_answer() -> None:
    async def script(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        for _ in range(40):
            await pen.piece(b"x" * 65_536)
        await pen.end()

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        reply = await client.send(POST, b"{}", 2.0)
        total = 0
        while piece := await reply.read():
            total += len(piece)
            await asyncio.sleep(0.001)
        reply.close()
        assert total == 40 * 65_536

    asking(script, scenario)


def test_who_is_cancelled_cuts_its_connection() -> None:
    gone = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.gone()
        gone.set()

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        task = asyncio.create_task(client.send(POST, b"{}", 2.0))
        await until(lambda: bool(theirs.seen))
        task.cancel()
        async with asyncio.timeout(60):
            await gone.wait()
        assert (await asyncio.gather(task, return_exceptions=True))[0].__class__.__name__ == (
            "CancelledError"
        )

    asking(script, scenario)


def test_a_connection_whose_last_bytes_come_late_is_used_again() -> None:
    late = asyncio.Event()

    async def script(seen: Seen, pen: Pen) -> None:
        await pen.begin()
        await pen.piece(b"data")
        await late.wait()
        await pen.end()

    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        reply = await client.send(POST, b"{}", 2.0)
        assert await reply.read() == b"data"
        reply.close(ends_soon=True)
        late.set()
        await until(lambda: len(client._idle) == 1)
        assert (await whole(client))[1] == b"data"
        assert theirs.num_connections == 1

    asking(script, scenario)


def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        await theirs.stop()
        with pytest.raises(NotConnected):
            await client.send(POST, b"{}", 2.0)
        await theirs.start()

    asking(raw(), scenario)


def test_a_server_that_does_not_accept_is_waited_for_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(client: HttpClient, theirs: FakeUpstream) -> None:
        async def never(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never, raising=False)
        with pytest.raises(UpstreamTimeout, match=r"within 0\.05 s"):
            await client.send(POST, b"{}", 0.05)

    asking(raw(), scenario)
