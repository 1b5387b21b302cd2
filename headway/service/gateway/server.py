"""The ASGI application: finds what a request is for, answers it, and never lets one hang."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from headway.core.base import metrics
from headway.core.base.clock import Clock
from headway.core.base.errors import (
    HeadwayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    ShuttingDown,
)
from headway.core.base.metrics import Outcome
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Event
from headway.core.route.cascade import Confidence
from headway.core.tenancy.tenant import Principal, Tenant, lowered, read_targets
from headway.service.gateway.admin_routes import AdminRoutes
from headway.service.gateway.attempt import Attempt, Ways
from headway.service.gateway.auth import KeyRing
from headway.service.gateway.encode import off_loop
from headway.service.gateway.flights import Flights
from headway.service.gateway.forwarded import PARSERS, Outlet, ServedUpstream, call_of, judged
from headway.service.gateway.generate import GENERATORS, Generator, Request
from headway.service.gateway.heartbeat import PATH as BEAT_PATH
from headway.service.gateway.heartbeat import Beats
from headway.service.gateway.http import ClientGone, Exchange, Header, Receive, Scope, Send
from headway.service.gateway.journey import Books, Journey
from headway.service.gateway.limited import counted
from headway.service.gateway.meter import Meter
from headway.service.gateway.models import Models, Served
from headway.service.gateway.no_tokens import NO_TOKENS
from headway.service.gateway.pages import Condition, Page, Pages
from headway.service.gateway.plan import Plan
from headway.service.gateway.routing import AnyRequest, Routed, Routing
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.stream import SseStream
from headway.service.gateway.tokens import Answers, TokenPages
from headway.service.openai.errors import HIDDEN, public, to_response
from headway.service.openai.forwarded import ForwardedRequest, model_of
from headway.service.openai.limits import ApiLimits
from headway.service.openai.responses import Answer, AnswerHead
from headway.service.openai.schema import Asker
from headway.service.upstream.ends import Outlet as AnyOutlet

log = logging.getLogger(__name__)

READS = frozenset({"GET", "HEAD"})
PROTECTED = "/v1/"


class Parts(NamedTuple):
    """What the application is made of; each part is owned by it from here on."""

    settings: GatewaySettings
    api_limits: ApiLimits
    clock: Clock
    models: Models
    meter: Callable[[], Meter]  # of requests until their model is known
    condition: Condition
    pages: Pages
    token_pages: TokenPages
    fingerprint: str  # of this build and model, for `system_fingerprint`
    books: Books
    keys: KeyRing
    routing: Routing
    admin: AdminRoutes | None = None  # None: there is no /admin


class Gateway:
    """Serves HTTP; made on the event loop that it runs on."""

    def __init__(self, parts: Parts, wall_clock: Callable[[], float] = time.time) -> None:
        self._parts = parts
        self._wall_clock = wall_clock
        settings = parts.settings
        self._admin = parts.admin if settings.admin_listen is None else None
        # Without tenants or targets nobody was promised anything, and nobody is refused for it.
        self._is_promised = bool(settings.tenant or settings.slo_ttft)
        self._targets = read_targets(settings.slo_ttft)
        self._flights = Flights()
        self._beats = Beats(parts.clock, Seconds(settings.heartbeat_timeout))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection: an HTTP request, from its header to the end of its answer."""
        assert scope["type"] == "http", scope["type"]
        exchange = Exchange(scope, receive, send)
        generator = GENERATORS.get(exchange.path)
        tokens = self._parts.token_pages.by_path.get(exchange.path)
        try:
            if self._admin is not None and AdminRoutes.owns(exchange.path):
                await self._answer_page(exchange, self._admin.answer(exchange))
            elif generator is not None and exchange.method == "POST":
                await self._generate(exchange, generator)
            elif tokens is not None and exchange.method == "POST":
                await self._tell(exchange, tokens)
            elif exchange.method == "POST" and BEAT_PATH.fullmatch(exchange.path):
                await self._answer_page(exchange, self._beaten(exchange))
            else:
                await self._show(exchange, takes_post=bool(generator or tokens))
        except ClientGone:
            # The server would complain of a cut answer as long as it has the connection.
            await exchange.until_gone()

    async def administer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for a listener of its own that has /admin and nothing else."""
        assert scope["type"] == "http", scope["type"]
        assert self._parts.admin is not None, "there is no admin key"
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer_page(exchange, self._parts.admin.answer(exchange))
        except ClientGone:
            return

    def drain(self) -> None:
        """Take no new requests; those under way go on."""
        settings, now = self._parts.settings, self._parts.clock.now()
        self._parts.condition.stop_within(Seconds(settings.shutdown_timeout))
        for served in self._parts.models.all:
            served.admitter.drain(Seconds(now + settings.shutdown_timeout))

    def abort(self) -> None:
        """End the requests that are still under way with an error."""
        self._flights.abort(
            ShuttingDown("the server was stopped before the answer was complete", Seconds(1.0))
        )

    async def landed(self) -> None:
        """Wait until no request is under way."""
        await self._flights.landed()

    async def _show(self, exchange: Exchange, *, takes_post: bool) -> None:
        async def shown() -> Page:
            page = self._parts.pages.find(exchange.path)
            if page is None and not takes_post:
                raise NotFound("There is nothing at this path; see /docs.")
            if page is None or exchange.method not in READS:
                allowed = "POST" if takes_post else "GET"
                raise MethodNotAllowed(
                    f"{exchange.method} is not allowed here; use {allowed}.", allowed=allowed
                )
            return page(exchange, await self._allowed(exchange))

        await self._answer_page(exchange, shown())

    async def _tell(self, exchange: Exchange, answer: Answers) -> None:
        async def told() -> Page:
            principal = await self._principal(exchange)
            settings = self._parts.settings
            body = await exchange.body(settings.max_body_bytes, settings.body_timeout)
            async with counted(exchange, principal, self._parts.books):
                return Page(200, await answer(body, principal.tenant.models))

        await self._answer_page(exchange, told())

    async def _beaten(self, exchange: Exchange) -> Page:
        return self._beats.beat(exchange, await self._principal(exchange))

    async def _answer_page(self, exchange: Exchange, page: Awaitable[Page]) -> None:
        """Send a page that is whole, or why there is none."""
        try:
            status, body, content_type, headers = await page
        except HeadwayError as error:
            return await _refuse(exchange, error)
        except ClientGone:
            raise
        except Exception:
            log.exception("page_failed", extra={"request_id": exchange.shown_id})
            return await _refuse(exchange, InternalError(HIDDEN))
        await exchange.answer(status, body, content_type, headers)

    async def _generate(self, exchange: Exchange, generator: Generator) -> None:
        """Answer one request to a generating endpoint, with exactly one outcome."""
        meter = self._parts.meter().open(generator.name)
        journey = Journey(exchange, meter, self._parts.books)
        stream = SseStream(exchange, self._parts.clock, self._parts.settings.keepalive_interval)
        try:
            await self._answer(exchange, generator, stream, journey)
        except HeadwayError as error:
            await journey.close(Outcome.ERROR, error)
            await _fail(exchange, stream, error)
        except ClientGone:
            raise
        except Exception:
            log.exception("request_failed", extra={"request_id": exchange.shown_id})
            await journey.close(Outcome.ERROR)
            await _fail(exchange, stream, InternalError(HIDDEN))
        finally:  # counts if nothing above or in the sink did
            await journey.close(Outcome.CANCELLED)

    async def _answer(
        self, exchange: Exchange, generator: Generator, stream: SseStream, journey: Journey
    ) -> None:
        parts = self._parts
        principal = await self._principal(exchange)
        journey.identify(principal)
        with parts.routing.plan as plan:
            model, version = _asked(exchange, generator, plan)
            read = await self._read(exchange, generator, model, plan)
            request = self._stamped(read, principal.tenant)
            journey.asks(request.user, is_stream=request.stream)
            await journey.enter(principal)
            routed = parts.routing.route(request, exchange.id, version, plan)
            journey.routed(routed.route, routed.served.meter, request.asker.slo_class)
            with self._beats.watched(exchange, principal) as beside:
                if request.stream:
                    beside.append(stream.keep_alive)
                relayed = self._relayed(exchange, generator, routed, stream, journey)
                await self._flights.run(exchange, relayed, *beside)

    async def _relayed(
        self,
        exchange: Exchange,
        generator: Generator,
        routed: Routed,
        stream: SseStream,
        journey: Journey,
    ) -> None:
        """Through the pool of its model, and every event to the client."""
        parts, request = self._parts, routed.request
        if request.unknown_fields:
            routed.served.meter.exporter.add(metrics.UNKNOWN_FIELDS, len(request.unknown_fields))
        created = int(self._wall_clock())

        def head(by: Routed) -> AnswerHead:
            return AnswerHead(
                id=f"{generator.id_prefix}-{exchange.id}",
                created=created,
                model=by.shown_model,
                system_fingerprint=parts.fingerprint,
            )

        def make(by: Routed, made: Sequence[EngineRequest]) -> Answer:
            assert not isinstance(by.request, ForwardedRequest), "it was checked"
            served = by.served
            tokenizer = served.encoder.tokenizer if isinstance(served, Served) else NO_TOKENS
            return generator.answer(head(by), by.request, made, tokenizer)

        async def forward(
            by: Routed,
            sent: ForwardedRequest,
            call_id: str,
            outlet: AnyOutlet,
            judge: Confidence | None,
        ) -> None:
            assert isinstance(by.served, ServedUpstream)
            call = call_of(exchange, generator.name, sent, head(by), journey, call_id)
            await by.served.forwarder.run(judged(call, judge), outlet, journey)

        sink = _Sink(exchange, stream if request.stream else None, journey)
        outlet = partial(Outlet, exchange, stream, journey)
        checked = partial(self._checked, exchange, generator, routed.plan)
        ways = Ways(make, sink.take, forward, outlet, checked)
        await Attempt(exchange, parts.routing, journey, ways).run(routed)

    async def _read(
        self, exchange: Exchange, generator: Generator, model: str | None, plan: Plan
    ) -> AnyRequest:
        """Checked as a whole where only an engine of ours can answer, else as far as we use it."""
        settings, limits, models = self._parts.settings, self._parts.api_limits, plan.models
        body = await exchange.body(settings.max_body_bytes, settings.body_timeout)
        query = {} if model is None else {"model": model}
        may_leave = models.has_upstreams and (plan.table.is_configured or not models.has_own)

        def parsed() -> AnyRequest:
            if models.has_upstreams and (may_leave or not models.is_own(model_of(body, query))):
                found = PARSERS[generator.name](body, query, limits)
                return msgspec.structs.replace(found, body=body)
            return generator.parse(body, query, limits)

        return await off_loop(body, parsed)

    def _checked(
        self, exchange: Exchange, generator: Generator, plan: Plan, request: ForwardedRequest
    ) -> Request:
        """The same request as an engine takes it; raises a ClientError."""
        model, _ = _asked(exchange, generator, plan)
        query = {} if model is None else {"model": model}
        made = generator.parse(request.body, query, self._parts.api_limits)
        return msgspec.structs.replace(made, asker=request.asker, model=request.model)

    def _stamped(self, request: AnyRequest, tenant: Tenant) -> AnyRequest:
        """Whose it is decides its class; the request itself may only ask for a lower one."""
        slo_class = lowered(tenant.slo_class, request.asked_class)
        is_promised = self._is_promised or tenant.name != ""  # a tenant may be of the database
        budget = self._targets.get(slo_class) if is_promised else None
        asker = Asker(tenant=tenant, slo_class=slo_class, first_token_budget_s=budget)
        return msgspec.structs.replace(request, asker=asker)

    async def _principal(self, exchange: Exchange) -> Principal:
        return await self._parts.keys.check(exchange.headers("authorization"))

    async def _allowed(self, exchange: Exchange) -> tuple[str, ...]:
        """Names of the models that the caller may use; empty: all. Raises Unauthorized."""
        path = exchange.path
        if path.startswith(PROTECTED) or path in self._parts.token_pages.by_path:
            return (await self._principal(exchange)).tenant.models
        return ()


def _asked(exchange: Exchange, generator: Generator, plan: Plan) -> tuple[str | None, str | None]:
    """The model and the version that the URL names; a version anywhere, a model at some."""
    model, version = plan.split_query(exchange.query("model"))
    return model if generator.is_named_by_query else None, version


class _Sink:
    """Where the events of one request go: into a stream, or into a whole answer.

    A complete answer is counted before its last bytes leave, so that whoever has read it
    also finds it in the metrics.
    """

    def __init__(self, exchange: Exchange, stream: SseStream | None, journey: Journey) -> None:
        self._exchange = exchange
        self._stream = stream
        self._journey = journey

    async def take(self, answer: Answer, event: Event, prompt: int) -> None:
        """Pass on what the event brings; raises the answer's failure."""
        if self._stream is None:
            answer.feed(event, prompt)
            if answer.is_done:
                body = answer.response()
                self._answered(answer)
                await self._journey.close(Outcome.OK)
                await self._exchange.answer(200, body)
            return
        data = answer.stream(event, prompt)
        if answer.failure is not None:
            raise answer.failure
        if answer.is_done:
            self._answered(answer)
            await self._journey.close(Outcome.OK)
        elif data:
            self._journey.giving(answer.num_told)
        if data:
            if answer.is_done or not self._stream.push(data):
                await self._stream.send(data, is_last=answer.is_done)
            self._journey.gave()

    def _answered(self, answer: Answer) -> None:
        """All of it is about to leave, and its usage is what it says itself."""
        num_tokens = answer.usage.completion_tokens
        self._journey.giving(num_tokens)
        self._journey.answered(num_tokens)


async def _fail(exchange: Exchange, stream: SseStream, error: HeadwayError) -> None:
    """Tell the client: as a plain answer, or as the last event of a stream that has begun."""
    if stream.has_begun:
        await stream.fail(public(error))
    elif exchange.is_started:
        raise ClientGone  # inside a whole answer nothing more can be said
    else:
        await _refuse(exchange, error)


async def _refuse(exchange: Exchange, error: HeadwayError) -> None:
    status, named, body = to_response(error)
    headers: list[Header] = [
        (name.encode("ascii"), value.encode("ascii"))
        for name, value in named
        if name != "content-type"
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode("ascii")))
    await exchange.answer(status, body, headers=headers)
