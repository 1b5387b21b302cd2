"""Header floods, slow senders and odd framing are refused before any of our code sees them."""

import asyncio
import contextlib
import json

import psutil
import pytest

from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import (
    CHAT,
    DEADLINE_S,
    HI,
    Site,
    close,
    post,
    run,
    site,
    until,
)

REQUEST_LINE = b"GET /health HTTP/1.1\r\nHost: t\r\n"


async def exchange(here: Site, data: bytes) -> bytes:
    """Send bytes, then read until the server closes."""
    reader, writer = await here.connect()
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
    await close(writer)
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    found = json.loads(body)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return dict(found)


def test_too_many_header_lines_are_a_431_security_headers_auth_02() -> None:
    async def scenario() -> None:
        async with site() as here:
            flood = REQUEST_LINE + b"".join(b"a%d: b\r\n" % i for i in range(50_000)) + b"\r\n"
            answer = await exchange(here, flood)
            assert status_of(answer) == 431
            assert error_of(answer)["code"] == "header_too_large"

    run(scenario())


def test_a_header_line_without_end_is_cut_at_the_limit_security_headers_auth_02() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_header_bytes=10_000)) as here:
            reader, writer = await here.connect()
            writer.write(REQUEST_LINE + b"long: ")
            sent = 0
            while not reader.at_eof() and sent < 10_000_000:
                writer.write(b"x" * 50_000)
                sent += 50_000
                await asyncio.sleep(0)
                if writer.is_closing():
                    break
            async with asyncio.timeout(DEADLINE_S):
                try:
                    answer = await reader.read()
                except ConnectionResetError:
                    answer = b"HTTP/1.1 431 cut"
            assert status_of(answer) == 431
            await close(writer)

    run(scenario())


def test_a_header_at_the_limits_is_read() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_header_count=10)) as here:
            lines = b"".join(b"a%d: b\r\n" % i for i in range(8))
            end = b"Connection: close\r\n\r\n"
            assert status_of(await exchange(here, REQUEST_LINE + lines + end)) == 200
            more = REQUEST_LINE + lines + b"c: d\r\n" + end
            assert status_of(await exchange(here, more)) == 431

    run(scenario())


def test_a_long_url_is_a_431() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_header_bytes=4000)) as here:
            answer = await exchange(here, b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: t\r\n\r\n")
            assert status_of(answer) == 431

    run(scenario())


@pytest.mark.parametrize("begun", [b"", REQUEST_LINE + b"slow: "])
def test_a_connection_without_a_whole_header_is_closed_in_time(begun: bytes) -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(header_timeout=0.05)) as here:
            answer = await exchange(here, begun)
            assert status_of(answer) == 408
            assert error_of(answer)["code"] == "request_timeout"

    run(scenario())


def test_a_kept_connection_may_idle_but_its_next_header_must_be_quick() -> None:
    async def scenario() -> None:
        settings = GatewaySettings(header_timeout=0.5, idle_timeout=60)
        async with site(settings=settings) as here:
            reader, writer = await here.connect()
            request = REQUEST_LINE + b"\r\n"
            writer.write(request)
            await reader.readuntil(b"}")
            await asyncio.sleep(0.7)  # idle for longer than a header may take
            writer.write(request)
            assert await reader.readuntil(b"}")
            writer.write(request[:10])
            assert b" 408 " in await reader.readuntil(b"\r\n")
            await close(writer)

    run(scenario())


def test_the_header_timeout_does_not_touch_a_running_answer() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(header_timeout=0.5)) as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI))
            (name,) = await here.calls(1)
            await asyncio.wait((asking,), timeout=0.7)
            here.replica.say(name, "late")
            here.replica.finish(name)
            assert (await asking).status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: five\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\nXYZ\r\n",
        b"bad header\r\n\r\n",
        b"Content-Length: +5\r\n\r\nhello",
        b"Content-Length: 0x5\r\n\r\nhello",
        b"Content-Length: 5, 5\r\n\r\nhello",
        b"Content-Length: 99999999999999999999999\r\n\r\nhello",
        b"Content-Length: 5\r\n Transfer-Encoding: chunked\r\n\r\nhello",
        b"Transfer-Encoding: xchunked\r\n\r\nhello",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"X: a\rContent-Length: 5\r\n\r\nhello",
    ],
)
def test_ambiguous_framing_is_a_400_and_the_connection_closes(framing: bytes) -> None:
    async def scenario() -> None:
        async with site() as here:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\n".encode()
            assert status_of(await exchange(here, head + framing)) == 400

    run(scenario())


def test_what_is_no_http_is_a_400_in_openais_shape() -> None:
    async def scenario() -> None:
        async with site() as here:
            for rubbish in (
                b"\x16\x03\x01\x02\x00\x01",
                b"hello\r\n\r\n",
                b"GET /\xff HTTP/1.1\r\n\r\n",
            ):
                answer = await exchange(here, rubbish)
                assert status_of(answer) == 400
                assert error_of(answer)["code"] == "bad_request"

    run(scenario())


def test_security_headers_auth_02_chunk_extensions_and_trailers_are_bounded() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(max_header_bytes=10_000)) as here:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            for endless in (b"1;" + b"e" * 100, b"0\r\n" + b"t" * 100):
                reader, writer = await here.connect()
                writer.write(head + endless)
                sent = 0
                while not writer.is_closing() and not reader.at_eof() and sent < 10_000_000:
                    writer.write(b"e" * 20_000)
                    sent += 20_000
                    await asyncio.sleep(0.001)
                assert sent < 10_000_000
                await close(writer)

    run(scenario())


def test_security_headers_auth_02_slow_and_idle_senders_leave_others_alone() -> None:
    """200 slow bodies and 300 idle connections beside a stream."""

    async def scenario() -> None:
        settings = GatewaySettings(body_timeout=1.0, header_timeout=1.0)
        async with site(settings=settings) as here:
            asking = asyncio.create_task(here.client.post(CHAT, json=HI | {"stream": True}))
            (name,) = await here.calls(1)
            here.replica.say(name, "begin")
            head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n{{".encode()
            slow = [await here.connect() for _ in range(200)]
            for _, writer in slow:
                writer.write(head)
            idle = [await here.connect() for _ in range(300)]
            assert (await here.client.get("/health")).status_code == 200
            for reader, _ in [*slow, *idle]:
                async with asyncio.timeout(DEADLINE_S):
                    assert b" 408 " in await reader.readline()
            here.replica.say(name, "end")
            here.replica.finish(name)
            assert "end" in (await asking).text
            for _, writer in [*slow, *idle]:
                await close(writer)
            await until(lambda: here.admitter.num_in_flight == 0)

    run(scenario())


def test_a_body_shorter_than_its_length_is_not_waited_for_for_ever() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(body_timeout=0.05)) as here:
            data = post(CHAT, HI, {}).replace(b"Content-Length: ", b"Content-Length: 9")
            assert status_of(await exchange(here, data)) == 408

    run(scenario())


def test_security_headers_auth_02_limits_act_before_the_key_and_no_body_is_read_without() -> None:
    async def scenario() -> None:
        async with site(settings=GatewaySettings(api_key=("sk-one",), body_timeout=600)) as here:
            flood = post(CHAT, HI, {f"A{i}": "b" for i in range(1000)})
            assert status_of(await exchange(here, flood)) == 431
            reader, writer = await here.connect()
            endless = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000000\r\n\r\n{{"
            writer.write(endless.encode())
            async with asyncio.timeout(DEADLINE_S):
                assert b" 401 " in await reader.readline()
            await close(writer)

    run(scenario())


def test_security_headers_auth_02_header_floods_take_no_memory() -> None:
    async def scenario() -> None:
        async with site() as here:
            before = psutil.Process().memory_info().rss
            connections = [await here.connect() for _ in range(40)]
            for _, writer in connections:
                writer.write(REQUEST_LINE + b"long: ")
            for _ in range(160):  # 10 MB on each
                for _, writer in connections:
                    if writer.is_closing():  # which uvloop would not let it be written to
                        continue
                    with contextlib.suppress(ConnectionError):
                        writer.write(b"x" * 65_536)
                        await writer.drain()
            assert psutil.Process().memory_info().rss - before < 100 * 2**20
            assert (await here.client.get("/health")).status_code == 200
            for _, writer in connections:
                await close(writer)

    run(scenario())
