"""One request on its way through the gateway: who asks, where it goes, and its one end.

Each step tells the journey, and the journey tells what counts it: the meter (metrics and log), the
tenant's limits, the ledger. Whatever happens on the way, every journey that began is closed once.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headway.core.base.errors import HeadwayError, RateLimited
from headway.core.base.metrics import Outcome
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Event
from headway.core.messages.record import RequestRecord, Route
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, LimitStore
from headway.core.tenancy.tenant import Principal, SloClass
from headway.service.gateway.http import Exchange
from headway.service.gateway.meter import Meter, RequestMeter, outcome_of

WHAT: dict[LimitKind, str] = {
    LimitKind.REQUESTS: "requests a minute",
    LimitKind.TOKENS: "tokens a minute (prompt and max_tokens together)",
    LimitKind.CONCURRENCY: "requests at the same time",
    LimitKind.BUDGET: "millionths of the monthly budget",
}


class Ledger(Protocol):
    """Keeps one record a request; both calls return at once and never raise."""

    def opened(self, record: RequestRecord) -> None:
        """It is about to be sent to a replica; if this process dies now, that much is known."""
        ...

    def progressed(self, request_id: str, sent_tokens: int) -> None:
        """So many of its tokens were handed to the connection."""
        ...

    def closed(self, record: RequestRecord) -> None:
        """It has ended."""
        ...


class Pricing(Protocol):
    """What tokens cost."""

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """Micros of the currency; 0 for a model without a price."""
        ...


class Books(NamedTuple):
    """Where journeys are counted; shared by all of them."""

    limits: LimitStore
    ledger: Ledger
    pricing: Pricing
    wall_clock: "WallClock"
    gateway: str  # name of this process


class WallClock(Protocol):
    """Seconds since 1970, as time.time."""

    def __call__(self) -> float:
        """Now."""
        ...


class Journey:
    """One request, from the moment that its caller is known."""

    def __init__(self, exchange: Exchange, meter: RequestMeter, books: Books) -> None:
        self.meter = meter
        self.principal = Principal()
        self.route: Route | None = None
        self._exchange = exchange
        self._books = books
        self._claim: Claim | None = None
        self._is_closed = False
        self._replica = ""
        self._began = books.wall_clock()

    @property
    def id(self) -> str:
        """The gateway's own id of the request."""
        return self._exchange.id

    async def enter(self, principal: Principal) -> None:
        """It is this one's: count it against that one's limits; raises RateLimited."""
        self.principal = principal
        tenant = principal.tenant
        claim = Claim(id=self.id, tenant=tenant.name, limits=tenant.limits)
        self._check(await self._books.limits.enter(claim, self._books.wall_clock()))
        self._claim = claim

    def routed(self, route: Route, meter: Meter, slo_class: SloClass) -> None:
        """It goes there, and counts in that model's metrics from here on."""
        self.route = route
        self.meter.belongs_to(meter, slo_class)

    async def sized(self, prompt_tokens: int, max_tokens: int) -> None:
        """Its size is known, and nothing has been sent yet; raises RateLimited.

        max_tokens  of all its choices together
        """
        claim, books = self._claim, self._books
        if claim is not None and self.route is not None:
            cost = books.pricing.cost(self.route.model, prompt_tokens, 0, max_tokens)
            self._claim = claim = msgspec.structs.replace(
                claim, tokens=prompt_tokens + max_tokens, cost=cost
            )
            granted = await books.limits.reserve(claim, books.wall_clock())
            if isinstance(granted, Denied):
                self._claim = None
            self._check(granted)
        books.ledger.opened(self._record(Outcome.ERROR, None))

    def sent(self, requests: Sequence[EngineRequest]) -> None:
        """These went to the engine for it."""
        self.meter.sent(requests)

    def forwarded(self, prompt_tokens: int, replica: str) -> None:
        """It goes to a server that is not ours; called again where it is tried elsewhere.

        prompt_tokens  an estimate, until the answer tells their number
        """
        self._replica = replica
        self.meter.forwarded(self.id, prompt_tokens)

    def saw(self, event: Event) -> None:
        """An event of one of its engine requests."""
        self.meter.saw(event)

    async def close(self, outcome: Outcome, error: HeadwayError | None = None) -> None:
        """It ended; only the first call counts. Called before the last bytes leave."""
        if self._is_closed:
            return
        self._is_closed = True
        if error is None:
            self.meter.close(outcome, self._exchange.shown_id)
        else:
            self.meter.fail(error, self._exchange.shown_id)
        record = self._record(outcome if error is None else outcome_of(error), error)
        self._books.ledger.closed(record)
        claim, self._claim = self._claim, None
        if claim is not None:
            used = record.prompt_tokens + record.completion_tokens
            settled = self._books.limits.settle(claim, used, record.cost, self._books.wall_clock())
            await _to_the_end(settled)

    def _check(self, answer: Granted | Denied) -> None:
        """Raise RateLimited for a denial."""
        if isinstance(answer, Denied):
            raise RateLimited(
                f"tenant {self.principal.tenant.name!r} may use {answer.limit} "
                f"{WHAT[answer.kind]}, and this request would be over that",
                Seconds(answer.retry_after_s),
            )

    def _record(self, outcome: Outcome, error: HeadwayError | None) -> RequestRecord:
        tenant = self.principal.tenant
        return RequestRecord(
            id=self.id,
            shown_id=self._exchange.shown_id,
            gateway=self._books.gateway,
            tenant=tenant.name,
            key_id=self.principal.key_id,
            route=self.route,
            replica=self._replica,
            began=self._began,
            took_s=self._books.wall_clock() - self._began,
            outcome=outcome.value,
            error_code=(error.code or "") if error is not None else "",
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish it also when the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
