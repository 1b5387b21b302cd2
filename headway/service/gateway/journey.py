"""One request on its way through the gateway: who asks, where it goes, and its one end.

Each step tells the journey, and the journey tells what counts it: the meter (metrics and log), the
tenant's limits, the ledger. Whatever happens on the way, every journey that began is closed once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from headway.core.base.errors import HeadwayError, ReplicaLost
from headway.core.base.metrics import Outcome
from headway.core.messages.path import EngineRequest, Event, Finished, Sampling
from headway.core.messages.record import RequestRecord, Route
from headway.core.tenancy.limits import UNLIMITED, Claim, Denied, Granted, LimitStore
from headway.core.tenancy.tenant import Principal, SloClass
from headway.service.gateway.http import Exchange
from headway.service.gateway.limit_answers import LimitRules
from headway.service.gateway.meter import Meter, RequestMeter
from headway.service.gateway.notes import ITS_OWN, Made, Notes, billed, hash_of_user
from headway.service.upstream.ends import Gained, Sent
from headway.service.wire.transport import Mailbox

LAST_WORDS_S = 5.0  # for an engine to tell what a cancelled request had cost
SETTLE_S = 0.5  # of them, for which the request's slot is kept

FIXED = "answer"  # Route.degraded where the client got a text of the operator's: nothing is paid
T = TypeVar("T")


class Ledger(Protocol):
    """Keeps one record a request; both calls return at once and never raise."""

    def opened(self, record: RequestRecord) -> None:
        """It is under way; if this process dies now, that much is known of it.

        Told at the end of the event loop's turn in which it was read, and again when its size was
        found later. Nothing of its answer can be there before.
        """
        ...

    def giving(self, request_id: str, num_tokens: int) -> None:
        """So many of its tokens, all told, are about to be handed to its connection."""
        ...

    def gave(self, request_id: str, num_tokens: int, num_unsent: Callable[[], int]) -> None:
        """So many were; `num_unsent` tells the bytes that the kernel has not taken yet."""
        ...

    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        """It has ended, and the last of its answer is with its connection, or will be at once."""
        ...

    def closes(self, rest: Callable[[], Coroutine[Any, Any, RequestRecord]]) -> None:
        """It has ended, and its record is complete a moment later."""
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
    rules: LimitRules = LimitRules()


class Size(NamedTuple):
    """Of a request, as far as it is known."""

    prompt_tokens: int
    max_tokens: int  # of all its choices together


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
        self.notes = Notes()
        self._exchange = exchange
        self._books = books
        self._claim: Claim | None = None
        self._is_closed = False
        self._began = books.wall_clock()
        self._size = Size(0, 0)
        self._opening: asyncio.Handle | None = None

    @property
    def id(self) -> str:
        """The gateway's own id of the request."""
        return self._exchange.id

    @property
    def depends_on_size(self) -> bool:
        """Whether a limit depends on how many tokens it has."""
        return self._claim is not None and self._claim.limits.depend_on_size

    def identify(self, principal: Principal) -> None:
        """It is known who asks: from here on it gets a record, however it ends."""
        self.principal = principal
        self.notes.is_known = True

    def asks(self, user: str | None, *, is_stream: bool) -> None:
        """What the request says of itself."""
        self.notes.user = hash_of_user(user, self.principal.tenant.name)
        self.notes.is_stream = is_stream
        self._open_soon(Size(0, 0))

    async def enter(self, principal: Principal) -> None:
        """It is this one's: count it against that one's limits; raises RateLimited."""
        self.principal = principal
        tenant, books = principal.tenant, self._books
        limits = books.rules.table.of(tenant)
        if limits == UNLIMITED:
            return
        # Known before the answer is: whoever leaves meanwhile gives back what was granted.
        self._claim = claim = Claim(id=self.id, tenant=tenant.name, limits=limits)
        self._check(await _to_the_end(books.limits.enter(claim, books.wall_clock())))

    def routed(self, route: Route, meter: Meter, slo_class: SloClass) -> None:
        """It goes there, and counts in that model's metrics from here on."""
        self.route = route
        self.meter.belongs_to(meter, slo_class)

    def reserved_for(self, max_tokens: int, asked: int | None) -> int:
        """Tokens to reserve for a choice that may have `max_tokens`; `asked` as by the client.

        Who asks for no length seldom uses all of the context, and is not held to have.
        """
        if asked is not None:
            return max_tokens
        return min(max_tokens, self._books.rules.table.settings.reserve_tokens)

    def may_call(self, models: Sequence[str]) -> None:
        """It may be sent to each of these, and is reserved for with all of them at once."""
        self.notes.models = models

    def dropped(self) -> None:
        """What was made so far reaches nobody and is paid for; another model goes on."""
        made = self.meter.made()
        if self.route is not None:
            cost = self._books.pricing.cost(self.route.model, *made[:3])
            self.notes.dropped = made._replace(cost=cost)

    def wasted(self) -> None:
        """What was made so far reaches nobody, as its maker failed, and is not paid for."""
        self.notes.dropped = self.meter.made()._replace(cost=self.notes.dropped.cost)

    def kept(self) -> None:
        """What was dropped is the answer after all; what was made after it reaches nobody."""
        first, made = self.notes.dropped, self.meter.made()
        self.notes.dropped = Made(
            prompt_tokens=made.prompt_tokens - first.prompt_tokens,
            cached_tokens=made.cached_tokens - first.cached_tokens,
            completion_tokens=made.completion_tokens - first.completion_tokens,
        )

    async def sized(self, prompt_tokens: int, max_tokens: int) -> None:
        """Its size is known, and nothing has been sent yet; raises RateLimited.

        max_tokens  of all its choices together

        What is sent again elsewhere was reserved the first time.
        """
        if self.notes.is_sized:
            return
        self.notes.is_sized = True
        claim, books = self._claim, self._books
        if claim is not None and self.route is not None:
            models = self.notes.models or (self.route.model,)
            cost = sum(books.pricing.cost(each, prompt_tokens, 0, max_tokens) for each in models)
            tokens = len(models) * (prompt_tokens + max_tokens)
            self._claim = claim = msgspec.structs.replace(claim, tokens=tokens, cost=cost)
            if claim.limits.depend_on_size:
                self._check(await _to_the_end(books.limits.reserve(claim, books.wall_clock())))
        self._open_soon(Size(prompt_tokens, max_tokens))

    def sent(self, requests: Sequence[EngineRequest]) -> None:
        """These went to the engine for it."""
        self.meter.sent(requests)

    def forwarded(self, sent: Sent) -> None:
        """It goes to a server that is not ours; called again where it is tried elsewhere."""
        self.notes.replica, self.notes.failovers = sent.replica, sent.failovers
        sampling = Sampling(max_tokens=sent.max_tokens, seed=0)
        stands_in = EngineRequest(
            id=sent.id, prompt=(), sampling=sampling, num_choices=sent.num_choices
        )
        self.meter.forwarded(stands_in, sent.prompt_tokens)

    def saw(self, event: Event) -> None:
        """An event of one of its engine requests."""
        self.meter.saw(event)

    @property
    def gained(self) -> Gained:
        """Counts tokens of a choice of one of them; the meter's own, to be called at each."""
        return self.meter.gained

    def giving(self, num_tokens: int) -> None:
        """So many of its tokens, all told, are about to be handed to its connection."""
        self.notes.giving = num_tokens
        self._open_now()
        if not self._is_closed:
            self._books.ledger.giving(self.id, num_tokens)

    def gave(self) -> None:
        """They were."""
        self.notes.sent = self.notes.giving
        if not self._is_closed:
            self._books.ledger.gave(self.id, self.notes.sent, self._exchange.num_unsent)

    def answered(self, completion_tokens: int) -> None:
        """Its answer is complete, and says that it has so many tokens."""
        self.notes.told = completion_tokens

    def left(self, boxes: Mapping[str, Mailbox]) -> None:
        """These engine requests of it were cancelled; what they had cost comes here."""
        self.notes.boxes = boxes
        for box in boxes.values():  # those of a pool of several replicas know where they were
            self.notes.replica = getattr(box, "replica", self.notes.replica)
            self.notes.failovers = getattr(box, "failovers", self.notes.failovers)

    async def close(self, outcome: Outcome, error: HeadwayError | None = None) -> None:
        """It ended; only the first call counts. Called before the last bytes leave."""
        if self._is_closed:
            return
        if self.notes.boxes:  # it stays open until the engine has told the rest
            self._open_now()
        self._is_closed = True
        if error is None:
            self.meter.close(outcome, self._exchange.shown_id)
        else:
            outcome = self.meter.fail(error, self._exchange.shown_id)
        self.notes.took_s = self.meter.took_s
        if self.notes.boxes:  # the ledger's, and the limits', once the engine has told the rest
            self._books.ledger.closes(lambda: self._heard_out(outcome, error))
            return
        record = self._record(outcome, error)
        try:
            await _to_the_end(self._settle(record))
        finally:  # last, so that nothing is waited for between this and the answer's last bytes
            if self.notes.is_known:
                self._books.ledger.closed(record, self._exchange.num_unsent)

    def _open_soon(self, size: Size) -> None:
        """Have the ledger know as much as is known, should this process be killed.

        Not at once: a request that has to wait for nothing is sent on in this turn of the loop, and
        it is not to wait for that either. Whoever reads the ledger's file cannot tell.
        """
        self._size = size
        if self._opening is None:
            self._opening = asyncio.get_running_loop().call_soon(self._open)

    def _open_now(self) -> None:
        """The same before the turn is over, where that matters."""
        if self._opening is not None:
            self._opening.cancel()
            self._open()

    def _open(self) -> None:
        self._opening = None
        if self.notes.is_known and not self._is_closed:
            record = self._known(Outcome.LOST, None)  # what it is if nothing is told of it again
            self._books.ledger.opened(self.meter.opened(record, *self._size))

    async def _settle(self, record: RequestRecord) -> None:
        """Give back what it did not use of its tenant's limits."""
        claim, self._claim = self._claim, None
        if claim is not None:
            used = record.prompt_tokens + record.completion_tokens
            now = self._books.wall_clock()
            await self._books.limits.settle(claim, used, record.cost, now)

    def _check(self, answer: Granted | Denied) -> None:
        """Tell the client how it stands; raises RateLimited, and then nothing is held."""
        claim = self._claim
        assert claim is not None
        if isinstance(answer, Denied):
            self.notes.limit = answer.kind.value
            self._claim = None
        self._books.rules.tell(self._exchange, self.principal.tenant, claim, answer)

    async def _heard_out(self, outcome: Outcome, error: HeadwayError | None) -> RequestRecord:
        """The record, once the engine has told the rest; limits do not wait for it as long."""
        hearing = asyncio.ensure_future(self._hear())
        try:
            await asyncio.wait((hearing,), timeout=SETTLE_S)
            await self._settle(self._record(outcome, error))
            await asyncio.wait((hearing,), timeout=LAST_WORDS_S - SETTLE_S)
        finally:
            hearing.cancel()
        return self._record(outcome, error)

    async def _hear(self) -> None:
        """What the engine tells of its cancelled requests."""
        with contextlib.suppress(ReplicaLost):
            for box in self.notes.boxes.values():
                while not isinstance(event := await box.get(), Finished):
                    pass
                self.meter.heard(event)

    def _record(self, outcome: Outcome, error: HeadwayError | None) -> RequestRecord:
        """As far as everything is known now."""
        return self._charged(self.meter.fill(self._known(outcome, error)), outcome)

    def _known(self, outcome: Outcome, error: HeadwayError | None) -> RequestRecord:
        """What the meter has no part in."""
        tenant, notes = self.principal.tenant, self.notes
        return RequestRecord(
            id=self.id,
            shown_id=self._exchange.shown_id,
            gateway=self._books.gateway,
            tenant=tenant.name,
            key_id=self.principal.key_id,
            route=self.route,
            replica=notes.replica,
            failovers=notes.failovers,
            user=notes.user,
            is_stream=notes.is_stream,
            limit=notes.limit,
            began=self._began,
            took_s=notes.took_s or 0.0,
            outcome=outcome.value,
            error_code=(error.code or "") if error is not None else "",
        )

    def _charged(self, record: RequestRecord, outcome: Outcome) -> RequestRecord:
        """The record with what was sent, and what all of it costs."""
        notes, dropped = self.notes, self.notes.dropped
        made, sent = record.completion_tokens - dropped.completion_tokens, notes.sent
        if notes.told is not None:  # an answer that is complete speaks for itself
            made = sent = notes.told
        paid, cost = billed(outcome, made, sent), 0
        route = self.route
        if route is not None and route.degraded != FIXED and (outcome in ITS_OWN or paid):
            prompt = record.prompt_tokens - dropped.prompt_tokens
            cached = record.cached_tokens - dropped.cached_tokens
            cost = dropped.cost + self._books.pricing.cost(route.model, prompt, cached, paid)
        made += dropped.completion_tokens
        return msgspec.structs.replace(record, completion_tokens=made, sent_tokens=sent, cost=cost)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish it also when the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
