"""A server that is not ours, as the test writes it, and a gateway in front of it."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import msgspec

from headway.core.route.table import RoutesSettings
from headway.service.gateway.assemble import (
    Assembled,
    GatewayNeeds,
    assemble,
)
from headway.service.gateway.books import NoLedger, NoLimits, NoPrices
from headway.service.gateway.journey import Books
from headway.service.gateway.lifecycle import HttpServer, bind
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.serving import ModelNeeds, UpstreamNeeds
from headway.service.gateway.settings import GatewaySettings
from headway.service.observe.clock import SystemClock
from headway.service.openai.limits import ApiLimits
from headway.service.upstream.http1 import tls_context
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import Timeouts, UpstreamSettings
from tests.no_tls import NO_TLS

CHAT = "/v1/chat/completions"
HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
QUICK = Timeouts(connect=10.0, first_token=30.0, between_chunks=30.0, total=60.0, probe=10.0)


class Seen(NamedTuple):
    """A request as the upstream got it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]  # names as they came
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """Its body."""
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    def header(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key.lower() == name]


class Pen:
    """Writes one answer, byte by byte if the test wants it so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_closed = False

    async def begin(self, *headers: str, status: int = 200) -> None:
        """The header of a streamed answer."""
        lines = [f"HTTP/1.1 {status} Told", "content-type: text/event-stream", *headers]
        lines.append("transfer-encoding: chunked")
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def piece(self, data: bytes) -> None:
        """One chunk of it, in one write."""
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        """Its regular end."""
        await self.raw(b"0\r\n\r\n")

    async def events(self, *datas: object) -> None:
        """Events, each in a write of its own."""
        for data in datas:
            await self.piece(event(data))

    async def answer(self, status: int, body: object, *headers: str) -> None:
        """A whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = () if any(h.startswith("content-type") for h in headers) else JSON
        lines = [f"HTTP/1.1 {status} Told", *kind, f"content-length: {len(data)}", *headers]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    def reset(self) -> None:
        """Break the connection: a TCP reset."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._writer.transport.abort()
        self.is_closed = True

    def close(self) -> None:
        """Close it cleanly."""
        self._writer.close()
        self.is_closed = True

    async def gone(self) -> None:
        """Wait until the other side has closed."""
        try:
            while await self._reader.read(4096):
                pass
        except OSError:
            return
        finally:
            self.is_closed = True


JSON = ("content-type: application/json",)
Script = Callable[[Seen, Pen], Awaitable[None]]


class FakeUpstream:
    """Serves on a free loopback port. Health, metrics and models answer by themselves."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._tls = tls
        self.seen: list[Seen] = []  # what was posted
        self.probes: list[Seen] = []
        self.health = 200
        self.metrics = ""
        self.loads: list[dict[str, Any]] = []  # as SGLang tells them
        self.models: list[dict[str, Any]] = []
        self.num_connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop, and break what is open."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._open.add(writer)
        try:
            while (seen := await _read(reader)) is not None:
                pen = Pen(reader, writer)
                await self._answer(seen, pen)
                if pen.is_closed:
                    return
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, seen: Seen, pen: Pen) -> None:
        if seen.method == "POST":
            self.seen.append(seen)
            return await self.script(seen, pen)
        self.probes.append(seen)
        if seen.path == "/metrics":
            text = self.metrics.encode()
            return await pen.answer(200, text, "content-type: text/plain")
        if seen.path.startswith("/v1/loads") and self.loads:
            return await pen.answer(200, {"loads": self.loads})
        if seen.path.endswith("/models"):
            return await pen.answer(200, {"object": "list", "data": self.models})
        await pen.answer(self.health, {})


@asynccontextmanager
async def upstream(
    script: Script, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[FakeUpstream]:
    """A fake that listens until the block ends."""
    fake = FakeUpstream(script, tls)
    await fake.start(port)
    try:
        yield fake
    finally:
        await fake.stop()


class Front:
    """A running gateway."""

    def __init__(self, parts: Assembled, pool: UpstreamPool, port: int) -> None:
        self.parts = parts
        self.pool = pool
        self.port = port
        url = f"http://127.0.0.1:{port}"
        self.client = httpx.AsyncClient(base_url=url, timeout=60.0, verify=NO_TLS)

    async def chat(self, **fields: Any) -> httpx.Response:
        """A request and its whole answer."""
        return await self.client.post(CHAT, json={**HI, **fields})

    async def metric(self, name: str) -> dict[str, float]:
        """All series of a metric by their labels."""
        found = {}
        for line in (await self.client.get("/metrics")).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == name or series.startswith(name + "{"):
                found[series.removeprefix(name)] = float(value)
        return found

    async def outcomes(self) -> dict[str, float]:
        """Requests by outcome."""
        found: dict[str, float] = {}
        for key, value in (await self.metric("headway_requests_total")).items():
            outcome = key.split('outcome="')[1].split('"')[0]
            found[outcome] = found.get(outcome, 0.0) + value
        return found

    async def in_flight(self) -> float:
        """Requests that have not ended, by every count of them."""
        names = ("headway_requests_in_flight", "headway_upstream_in_flight_requests")
        return sum([sum((await self.metric(name)).values()) for name in names])


@asynccontextmanager
async def front(
    upstreams: Sequence[FakeUpstream | str],
    *,
    gateway: GatewaySettings | None = None,
    beside: Sequence[ModelNeeds | UpstreamNeeds] = (),
    routes: RoutesSettings | None = None,
    books: Books | None = None,
    limits: RateLimitSettings | None = None,
    key: str | None = None,
    **fields: Any,
) -> AsyncGenerator[Front]:
    """A gateway in front of these, as the model `m`, until the block ends; probed once.

    fields  of UpstreamSettings
    """
    urls = tuple(each if isinstance(each, str) else each.url for each in upstreams)
    given = {"name": "m", "url": urls, "health_path": "/health", "timeouts": QUICK, **fields}
    clock = SystemClock()
    own = UpstreamSettings(**given)
    tls = tls_context(own.tls) if any(url.startswith("https:") for url in urls) else None
    pool = UpstreamPool(own, key, tls, clock)
    settings = msgspec.structs.replace(gateway or GatewaySettings(), port=0)
    parts = assemble(
        GatewayNeeds(
            settings=settings,
            api_limits=ApiLimits(),
            seed=None,
            models=[UpstreamNeeds(pool, 1), *beside],
            clock=clock,
            version="test",
            routes=routes,
            rate_limits=LimitTable(limits or RateLimitSettings()),
            books=books or Books(NoLimits(), NoLedger(), NoPrices(), time.time, "test"),
        )
    )
    listener = bind(settings)
    server = HttpServer(parts.gateway, settings, listener)
    running = asyncio.create_task(server.run_until_stopped())
    pool.start()
    await pool.wait_probed()
    while not server.started:
        await asyncio.sleep(0.002)
    made = Front(parts, pool, listener.getsockname()[1])
    try:
        yield made
    finally:
        await made.client.aclose()
        await pool.stop()
        server.stop()
        await running
        listener.close()


def event(data: object) -> bytes:
    """One event as servers write it."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a streamed chat."""
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "theirs-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "their-model",
        "choices": [choice],
        **more,
    }


def usage_chunk(prompt: int = 7, completion: int = 3) -> dict[str, Any]:
    """The chunk behind the last one."""
    told = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**chunk(), "choices": [], "usage": {**told, "total_tokens": prompt + completion}}


def answer(text: str = "Hello", **more: Any) -> dict[str, Any]:
    """A whole chat answer."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return {
        "id": "theirs-1",
        "object": "chat.completion",
        "created": 5,
        "model": "their-model",
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        **more,
    }


async def hello(seen: Seen, pen: Pen) -> None:
    """A script: "Hel", "lo", in the form that was asked for."""
    if not seen.json.get("stream"):
        return await pen.answer(200, answer())
    await pen.begin()
    first = chunk("")
    first["choices"][0]["delta"]["role"] = "assistant"
    await pen.events(first, chunk("Hel"), chunk("lo"), chunk(finish="stop"), usage_chunk())
    await pen.events("[DONE]")
    await pen.end()


def events_of(text: str) -> list[Any]:
    """The data of all events, JSON read, comments skipped."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def text_of(events: Sequence[Any]) -> str:
    """Joined content of choice 0."""
    texts = []
    for each in events:
        if isinstance(each, dict):
            for choice in each.get("choices", ()):
                texts.append(choice.get("delta", {}).get("content") or "")
    return "".join(texts)


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    """One request, or None at the end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = tuple((n, v.strip()) for n, _, v in (line.partition(":") for line in lines))
    length = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
    return Seen(method, path, headers, await reader.readexactly(length))
