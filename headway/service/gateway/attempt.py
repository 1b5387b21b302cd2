"""A routed request on its way to an answer: once, or again elsewhere while nothing was sent.

Three things may come between the model that was chosen and the answer: a refusal at its door,
which a smaller model may make good; a first token that does not come in time, in whose place a
fixed answer goes out; and a cascade, whose first answer is kept back until it is known to be good
enough.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.base.errors import (
    CapacityError,
    ClientError,
    DeadlineUnmeetable,
    HeadwayError,
    InternalError,
    InvalidRequest,
    PromptTooLong,
    ReplicaError,
    ShuttingDown,
    UpstreamTimeout,
)
from headway.core.base.units import Seconds
from headway.core.messages.path import (
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Sampling,
    Tokens,
    Usage,
)
from headway.core.route.cascade import CascadeSettings, Confidence
from headway.service.gateway.draft import Draft
from headway.service.gateway.forwarded import Beginning, ServedUpstream
from headway.service.gateway.generate import Request
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Journey
from headway.service.gateway.relay import Take
from headway.service.gateway.routing import AnyRequest, Routed, Routing, bounded
from headway.service.openai.forwarded import ForwardedRequest, plain
from headway.service.openai.responses import Answer
from headway.service.openai.schema import CompletionRequest
from headway.service.upstream.ends import Outlet
from headway.service.upstream.streaming import late

Makes = Callable[[Routed, Sequence[EngineRequest]], Answer]
Forward = Callable[[Routed, ForwardedRequest, str, Outlet, Confidence | None], Awaitable[None]]
BUSY = (CapacityError, ReplicaError)  # what another model may make good
UNFIT = (*BUSY, InternalError, PromptTooLong)  # why a cascade goes straight on to its second


class Ways(NamedTuple):
    """How answers are made, and where they go; each endpoint has its own."""

    makes: Makes
    take: Take
    forward: Forward  # to a server that is not ours; who judges the answer, if anybody does
    outlet: Callable[[Beginning], Outlet]  # to the client
    check: Callable[[ForwardedRequest], Request]  # as an engine of ours takes it


class Attempt:
    """One request, from its route to the end of its answer."""

    def __init__(self, exchange: Exchange, routing: Routing, journey: Journey, ways: Ways) -> None:
        self._exchange = exchange
        self._routing = routing
        self._journey = journey
        self._ways = ways
        self._num_calls = 0
        self._made: Sequence[EngineRequest] = ()  # of the last call
        self._is_stream = False
        self._beginning = Beginning()
        self._outlet = ways.outlet(self._beginning)

    async def run(self, routed: Routed) -> None:
        """Answer it; raises what `Relay.run` raises, when nothing helped."""
        self._is_stream = routed.request.stream
        instead = self._routing.answer_instead(routed)
        own = None if instead is None else self._own(routed)
        if instead is None or own is None:
            return await self._answer(routed)
        text, seconds = instead
        try:
            is_in_time = await self._within(seconds, self._answer(_watched(routed)))
        except (DeadlineUnmeetable, UpstreamTimeout):  # it is known already that it will not be
            if self._beginning.has_token.is_set():
                raise
            is_in_time = False
        if not is_in_time:
            await self._say(own, text)

    def _own(self, routed: Routed) -> Routed | None:
        """The same with a request that an engine of ours would take, answered in the same form.

        None where a text is no answer. What only another server understands is left out.
        """
        request = routed.request
        if not isinstance(request, ForwardedRequest):
            return routed
        kept = plain(request)
        try:
            return None if kept is None else routed._replace(request=self._ways.check(kept))
        except ClientError:
            return None

    async def _answer(self, routed: Routed) -> None:
        cascade = routed.choice.cascade
        if cascade is not None:
            return await self._cascade(routed, cascade)
        try:
            await self._call(routed, routed.request)
        except ClientError:  # what the smaller model cannot take, its own may
            fitting = self._routing.undegraded(routed)
            if fitting is None or self._beginning.is_out:
                raise
            await self._call(fitting, fitting.request)
        except BUSY as error:
            if self._is_final(error) or not await self._help_out(routed):
                raise

    async def _help_out(self, routed: Routed) -> bool:
        """A smaller model's answer in place of a refusal: the first one's that takes it, if any."""
        helper = self._routing.helper(routed)
        while helper is not None:
            self._journey.wasted()
            try:
                await self._call(helper, helper.request)
                return True
            except (ClientError, *BUSY) as error:
                if self._is_final(error):
                    raise
            helper = self._routing.helper(helper)
        return False

    async def _cascade(self, routed: Routed, cascade: CascadeSettings) -> None:
        """The first model's answer if it is sure of it, otherwise the second's.

        An answer that is there and in doubt is still better than none: it goes out when the
        second model is too busy.
        """
        self._journey.may_call((cascade.first, cascade.then))
        draft = Draft()
        try:
            await self._call(routed, routed.request, draft)
            doubt = draft.confidence.doubt(cascade)
        except (*UNFIT, InvalidRequest) as error:
            doubt = self._why_unfit(routed, error)
            draft.forget()
        self._routing.cascaded(routed, doubt)
        if doubt:
            second = self._routing.escalated(routed)
            if draft.is_there:
                self._journey.dropped()
            else:
                self._journey.wasted()
            try:
                if not draft.is_there or not self._routing.is_congested(second):
                    return await self._call(second, second.request)
            except BUSY as error:
                if not draft.is_there or self._is_final(error):
                    raise
            self._journey.kept()
            self._go(self._routing.kept(routed))
        await draft.play(self._pass_on, self._outlet)

    def _why_unfit(self, routed: Routed, error: HeadwayError) -> str:
        """Why the second model answers, the first one having failed; raises where neither may.

        What an engine of ours does not know, another server may, and the other way; two
        engines of ours know the same.
        """
        if isinstance(error, ShuttingDown):
            raise error
        is_clients = isinstance(error, InvalidRequest) and not isinstance(error, PromptTooLong)
        if is_clients and not isinstance(routed.request, ForwardedRequest):
            raise error
        return "unfit" if is_clients else "error"

    async def _call(self, routed: Routed, request: AnyRequest, draft: Draft | None = None) -> None:
        """Take it through one model; each call has an id of its own.

        draft  where its answer goes, scored; None: to the client
        """
        self._num_calls += 1
        id_ = (
            self._exchange.id if self._num_calls == 1 else f"{self._exchange.id}.{self._num_calls}"
        )
        self._go(routed)
        served = routed.served
        if isinstance(served, ServedUpstream):
            assert isinstance(request, ForwardedRequest), "beside upstreams nothing else is read"
            to, judge = (self._outlet, None) if draft is None else (draft, draft.confidence)
            return await self._ways.forward(routed, request, id_, to, judge)
        if isinstance(request, ForwardedRequest):
            request = bounded(self._ways.check(request), routed.route)
            routed = routed._replace(request=request)
        if draft is not None:
            request = _scored(request)
        take = self._pass_on if draft is None else draft.take

        def make(made: Sequence[EngineRequest]) -> Answer:
            self._made = made
            return self._ways.makes(routed, made)

        await served.relay.run(id_, request, served.directory.facts, make, take, self._journey)

    def _go(self, routed: Routed) -> None:
        """It goes there: told to all who want to know."""
        self._journey.routed(routed.route, routed.served.meter, routed.ask.slo_class)
        self._routing.tell(self._exchange, routed)

    async def _pass_on(self, answer: Answer, event: Event, prompt: int) -> None:
        if isinstance(event, Tokens):
            if self._is_stream:
                self._beginning.left()
            self._beginning.has_token.set()
        await self._ways.take(answer, event, prompt)

    def _is_final(self, error: HeadwayError) -> bool:
        """Whether nobody else may try."""
        return isinstance(error, ShuttingDown) or self._beginning.is_out

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work; False when it was ended as no token had come after so long."""
        task = asyncio.ensure_future(work)
        first = asyncio.ensure_future(self._beginning.has_token.wait())
        try:
            await asyncio.wait((task, first), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done() or self._beginning.has_token.is_set():
                await task
                return True
        finally:
            task.cancel()
            first.cancel()
            await asyncio.gather(task, first, return_exceptions=True)
        if self._beginning.has_token.is_set():
            # It left while the work was being ended, and no text may follow it.
            raise late("its first token")
        return False

    async def _say(self, routed: Routed, text: str) -> None:
        """The fixed answer, as every choice of an answer that ended by itself."""
        request = routed.request
        assert not isinstance(request, ForwardedRequest), "see _own"
        said = self._routing.answered_instead(routed)
        self._go(said)
        made = self._made or _unsent(request)
        answer = self._ways.makes(said, made)
        for index, each in enumerate(made):
            for choice in range(each.num_choices):
                tokens = Tokens(
                    request_id=each.id,
                    choice=choice,
                    token_ids=(),
                    text=text,
                    at=Seconds(0.0),
                    finish_reason=FinishReason.STOP,
                )
                await self._ways.take(answer, tokens, index)
            usage = Usage(prompt_tokens=len(each.prompt), completion_tokens=0)
            end = Finished(request_id=each.id, reason=FinishReason.STOP, usage=usage)
            await self._ways.take(answer, end, index)


def _watched(routed: Routed) -> Routed:
    """The same, with its first token seen also where the client sees only the whole answer."""
    if not isinstance(routed.request, ForwardedRequest):
        return routed
    return routed._replace(request=msgspec.structs.replace(routed.request, is_watched=True))


def _scored(request: Request) -> Request:
    """The same with the log-probabilities of its tokens; what the client gets does not change."""
    if request.sampling.num_logprobs is not None:
        return request
    sampling = msgspec.structs.replace(request.sampling, num_logprobs=0)
    return msgspec.structs.replace(request, sampling=sampling)


def _unsent(request: Request) -> list[EngineRequest]:
    """Stand-ins for the engine requests of a request that never got so far as to have them."""
    count = len(request.prompts) if isinstance(request, CompletionRequest) else 1
    sampling = Sampling(max_tokens=1, seed=0)
    return [
        EngineRequest(id=f"none-{i}", prompt=(), sampling=sampling, num_choices=request.n)
        for i in range(count)
    ]
