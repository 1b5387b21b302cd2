"""A gateway on a real socket over an engine whose events the test writes."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import uvloop

from headway.core.base.clock import Clock
from headway.core.base.errors import ReplicaLost, ReplicaNotReady
from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.core.fleet.residency import Residency, ResidencySettings
from headway.core.messages.health import ReplicaHello, ReplicaStatus
from headway.core.messages.path import (
    CacheMiss,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Started,
    Tokens,
    Usage,
)
from headway.core.route.admit import Admitter
from headway.core.route.table import RoutesSettings
from headway.core.tenancy.limits import LimitStore
from headway.service.gateway.assemble import Access, GatewayNeeds, assemble
from headway.service.gateway.books import NoLedger, NoLimits, NoPrices
from headway.service.gateway.encode import Encoder
from headway.service.gateway.journey import Books
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.lifecycle import HttpServer, bind
from headway.service.gateway.limit_settings import LimitTable
from headway.service.gateway.model import ServedModel
from headway.service.gateway.server import Gateway
from headway.service.gateway.serving import ModelNeeds
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.totals import PoolTotals
from headway.service.observe.clock import SystemClock
from headway.service.openai.limits import ApiLimits
from headway.service.wire.mailbox import RequestMailbox
from headway.service.wire.transport import ReplicaState, ReplicaView
from tests.no_tls import NO_TLS

CONTEXT = 512
VOCAB = 1024
DEADLINE_S = 60.0  # far above what is waited for, also on a busy machine
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NATIVE = "/v1/chat"
HI = {"messages": [{"role": "user", "content": "Hi"}]}

STATUS = ReplicaStatus(
    num_running=0,
    num_waiting=0,
    waiting_tokens=0,
    total_blocks=64,
    free_blocks=64,
    cached_blocks=0,
    waiting_by_class=(0, 0, 0),
)
HELLO = ReplicaHello(
    pid=1,
    max_model_len=CONTEXT,
    block_size=16,
    num_blocks=64,
    max_num_seqs=2,
    dtype="float32",
    executor="scripted",
    weight_bytes=1,
    load_s=0.1,
    status=STATUS,
)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run an async test on the event loop that the server uses, with a bound on its time."""

    async def bounded() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def until(condition: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
    """Poll until the condition holds; fails when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class CharTokenizer:
    """One token a character."""

    vocab_size = VOCAB
    eos_ids = (0,)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Code points, folded into the vocabulary."""
        return [1 + ord(char) % (VOCAB - 1) for char in text]

    def min_tokens(self, text: str) -> int:
        """One a character."""
        return len(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The character."""
        return chr(token_id - 1).encode() if token_id else b""

    def is_special(self, token_id: int) -> bool:
        """Only the end."""
        return token_id == 0


class JoiningTemplate:
    """Contents, one after the other."""

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Any,
        *,
        add_generation_prompt: bool,
        continue_final: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Ids of all contents, with what was asked of the template after them."""
        text = "".join(str(message.get("content")) for message in messages)
        text += "|continued" if continue_final else ""
        text += "".join(f"|{name}={value}" for name, value in (arguments or {}).items())
        return list(tokenizer.encode(text, add_special=False, parse_special=False))


class Holds:
    """Who holds a fake pool, and what a request waits for there."""

    def __init__(self) -> None:
        self.on_demand = False
        self.held: list[str] = []
        self.budgets: list[float | None] = []
        self.is_here = asyncio.Event()  # what requests wait for where it is loaded on demand


class FakeReplica:
    """A Pool whose requests wait until the test, or `script`, answers them."""

    def __init__(self) -> None:
        self.state = ReplicaState.READY
        self.reason = "ready"
        self.since_s = 0.0
        self.hello: ReplicaHello | None = HELLO
        self.status: ReplicaStatus | None = STATUS
        self.restarts = 0
        self.requests: dict[str, EngineRequest] = {}
        self.boxes: dict[str, RequestMailbox] = {}
        self.cancelled: list[str] = []
        self.script: Callable[[FakeReplica, EngineRequest], None] | None = None
        self.holds = Holds()

    async def hold(self, request_id: str, budget_s: float | None) -> float:
        """At once, or when `is_here` is set."""
        self.holds.held.append(request_id)
        self.holds.budgets.append(budget_s)
        waits = self.holds.on_demand and not self.holds.is_here.is_set()
        if waits:
            await self.holds.is_here.wait()
        if self.state is not ReplicaState.READY:
            raise ReplicaNotReady(f"the engine is not ready: {self.reason}", Seconds(7.0))
        return 0.25 if waits else 0.0

    def release(self, request_id: str) -> None:
        """Note it."""
        if request_id in self.holds.held:
            self.holds.held.remove(request_id)

    def residency(self) -> Residency:
        """Of one that has never been loaded."""
        return Residency(ResidencySettings(), Seconds(0.0))

    def view(self) -> ReplicaView:
        """What the test has set."""
        return ReplicaView(
            state=self.state,
            reason=self.reason,
            since_s=self.since_s,
            restarts=self.restarts,
            retry_after_s=7.0,
            hello=self.hello,
            status=self.status,
            on_demand=self.holds.on_demand,
        )

    def call(self, request: EngineRequest) -> RequestMailbox:
        """Keep the request; answer it if there is a script."""
        if self.state is not ReplicaState.READY:
            raise ReplicaNotReady(self.reason, Seconds(7.0))
        assert request.id not in self.requests
        box = self.boxes[request.id] = RequestMailbox(request.id)
        self.requests[request.id] = request
        if self.script is not None:
            self.script(self, request)
        return box

    def cancel(self, request_id: str) -> None:
        """Note it."""
        self.cancelled.append(request_id)

    def start(self, request_id: str) -> None:
        """The engine planned its first tokens."""
        miss = CacheMiss.DIFFERS
        self.put(Started(request_id=request_id, at=Seconds(0.0), cached_tokens=0, miss_reason=miss))

    def put(self, event: Event) -> None:
        """Deliver an event, unless nobody reads it any more."""
        if event.request_id not in self.cancelled:
            self.boxes[event.request_id].put(event)

    def say(self, request_id: str, text: str, choice: int = 0, at: float = 0.0) -> None:
        """One step's token."""
        self.put(
            Tokens(
                request_id=request_id,
                choice=choice,
                token_ids=(5,),
                text=text,
                at=Seconds(at),
            )
        )

    def end_choice(self, request_id: str, choice: int = 0) -> None:
        """The choice's last event, without text."""
        self.put(
            Tokens(
                request_id=request_id,
                choice=choice,
                token_ids=(),
                text="",
                at=Seconds(0.0),
                finish_reason=FinishReason.STOP,
            )
        )

    def finish(self, request_id: str, *, tokens: int = 1, cached: int = 0) -> None:
        """End every choice and the request."""
        request = self.requests[request_id]
        for choice in range(request.num_choices):
            self.end_choice(request_id, choice)
        usage = Usage(
            prompt_tokens=len(request.prompt), completion_tokens=tokens, cached_tokens=cached
        )
        self.put(Finished(request_id=request_id, reason=FinishReason.STOP, usage=usage))

    def fail(self, request_id: str, message: str, code: str) -> None:
        """The engine gives up on the request."""
        usage = Usage(prompt_tokens=1, completion_tokens=0)
        self.put(
            Finished(
                request_id=request_id,
                reason=FinishReason.ERROR,
                usage=usage,
                error=message,
                error_code=code,
            )
        )

    def lose(self, request_id: str) -> None:
        """The engine's process died."""
        self.boxes[request_id].fail(ReplicaLost("the engine process died", Seconds(3.0)))

    @property
    def ids(self) -> list[str]:
        """Ids of all requests, in order of arrival."""
        return list(self.requests)


def say_hello(replica: FakeReplica, request: EngineRequest) -> None:
    """A script: "Hel", "lo" for every choice, at once."""
    replica.start(request.id)
    for choice in range(request.num_choices):
        replica.say(request.id, "Hel", choice, at=1.0)
        replica.boxes[request.id].put(
            Tokens(
                request_id=request.id,
                choice=choice,
                token_ids=(6, 0),
                text="lo",
                at=Seconds(2.0),
                finish_reason=FinishReason.STOP,
            )
        )
    usage = Usage(prompt_tokens=len(request.prompt), completion_tokens=3 * request.num_choices)
    replica.put(Finished(request_id=request.id, reason=FinishReason.STOP, usage=usage))


class Site:
    """A running gateway and its engine."""

    def __init__(
        self, gateway: Gateway, admitter: Admitter, replica: FakeReplica, server: HttpServer
    ) -> None:
        self.gateway = gateway
        self.admitter = admitter
        self.replica = replica
        self.server = server
        self.port = 0
        self.client = httpx.AsyncClient(verify=NO_TLS)

    @property
    def num_connections(self) -> int:
        """Connections that the server has open."""
        return len(self.server.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)

    async def send(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a POST over a bare connection and leave the answer unread."""
        reader, writer = await self.connect()
        writer.write(post(path, body, headers or {}))
        await writer.drain()
        return reader, writer

    async def calls(self, count: int) -> list[str]:
        """Wait until so many requests have reached the engine; their ids."""
        await until(lambda: len(self.replica.requests) >= count)
        return self.replica.ids

    async def read(self, request_id: str) -> None:
        """Wait until the gateway has taken every event so far."""
        box = self.replica.boxes[request_id]
        await until(lambda: not box._unread and box._started is None)

    async def metric(self, name: str) -> dict[str, float]:
        """All series of a metric, by their labels as text."""
        text = (await self.client.get("/metrics")).text
        found = {}
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == name or series.startswith(name + "{"):
                found[series.removeprefix(name)] = float(value)
        return found

    async def counted(self, **outcomes: float) -> None:
        """Wait until these are all outcomes; a client that leaves does not see itself counted."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.outcomes() != outcomes:
                await asyncio.sleep(0.005)

    async def outcomes(self) -> dict[str, float]:
        """Requests by outcome, over all endpoints."""
        series = await self.metric("headway_requests_total")
        found: dict[str, float] = {}
        for key, value in series.items():
            outcome = key.split('outcome="')[1].split('"')[0]
            found[outcome] = found.get(outcome, 0) + value
        return found


def post(path: str, body: object, headers: Mapping[str, str]) -> bytes:
    """A POST as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n{lines}\r\n"
    return head.encode() + data


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close and wait for it."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


@asynccontextmanager
async def site(
    *,
    settings: GatewaySettings | None = None,
    engine: EngineSettings | None = None,
    limits: ApiLimits | None = None,
    replica: FakeReplica | None = None,
    names: tuple[str, ...] = ("m", "m-alias"),
    others: Mapping[tuple[str, ...], FakeReplica] | None = None,
    books: Books | None = None,
    access: Access | None = None,
    keeper: Keeper | None = None,
    rate_limits: LimitTable | None = None,
    limit_store: LimitStore | None = None,
    routes: Mapping[str, object] | None = None,
    images: Sequence[str] = (),
    clock: Clock | None = None,
) -> AsyncGenerator[Site]:
    """A gateway that serves on a free loopback port until the block ends.

    images  models (by their first names) that take images
    """
    chosen = msgspec.structs.replace(settings or GatewaySettings(), port=0)
    fake = replica or FakeReplica()
    encoder = Encoder(CharTokenizer(), JoiningTemplate(), 2)
    parts = assemble(
        GatewayNeeds(
            settings=chosen,
            api_limits=limits or ApiLimits(),
            seed=None,
            models=[
                ModelNeeds(
                    model=ServedModel(
                        names=each,
                        root="root",
                        vocab_size=VOCAB,
                        context_length=CONTEXT,
                        created=1,
                    ),
                    engine=engine or EngineSettings(),
                    encoder=encoder,
                    pool=pool,
                    modalities=("image",) if each[0] in images else (),
                    totals=PoolTotals(),
                )
                for each, pool in [(names, fake), *(others or {}).items()]
            ],
            clock=clock or SystemClock(),
            version="1.2.3",
            books=books
            or Books(limit_store or NoLimits(), NoLedger(), NoPrices(), time.time, "test"),
            access=access or Access(),
            keeper=keeper,
            rate_limits=rate_limits,
            routes=None if routes is None else msgspec.convert(routes, RoutesSettings),
        )
    )
    listener = bind(chosen)
    server = HttpServer(parts.gateway, chosen, listener)
    await parts.load()
    following = asyncio.create_task(parts.follow())
    serving = asyncio.create_task(server.run_until_stopped())
    here = Site(parts.gateway, parts.models.default.admitter, fake, server)
    try:
        await until(lambda: server.started)
        here.port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{here.port}"
        here.client = httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=NO_TLS)
        yield here
    finally:
        await here.client.aclose()
        server.stop()
        await serving
        following.cancel()
        parts.close()
        encoder.close()
        listener.close()
