"""Requests for models behind other servers: how each endpoint reads them, and where answers go."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from headway.core.base.metrics import Outcome
from headway.core.messages.record import Route
from headway.core.route.admit import AdmitLimits, Admitter
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Journey
from headway.service.gateway.meter import Meter
from headway.service.gateway.stream import SseStream
from headway.service.openai.answer_schema import ModelInfo
from headway.service.openai.forwarded import (
    ForwardedRequest,
    parse_forwarded_chat,
    parse_forwarded_completion,
    parse_forwarded_native,
)
from headway.service.openai.limits import ApiLimits
from headway.service.openai.responses import AnswerHead
from headway.service.upstream.answers import Shown
from headway.service.upstream.forward import Call, Forwarder
from headway.service.upstream.outgoing import PASSED, TARGETS, passed_headers
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import UpstreamSettings
from headway.service.wire.transport import ReplicaState, ReplicaView

Query = Mapping[str, str]
PARSERS: Mapping[str, Callable[[bytes, Query, ApiLimits], ForwardedRequest]] = {
    "chat_completions": lambda body, _, limits: parse_forwarded_chat(body, limits),
    "completions": lambda body, _, limits: parse_forwarded_completion(body, limits),
    "chat": parse_forwarded_native,
}
WAITING_BYTES = 1024 * 1024 * 1024  # no bound by tokens: the upstream has its own


class ServedUpstream(NamedTuple):
    """One model behind other servers; nothing here is shared with another."""

    pool: UpstreamPool
    admitter: Admitter
    forwarder: Forwarder
    meter: Meter
    created: int  # Unix time at which this server began to serve it

    @property
    def settings(self) -> UpstreamSettings:
        """What the operator said of it."""
        return self.pool.settings

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.settings.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.settings.names

    def infos(self) -> list[ModelInfo]:
        """Its entries of /v1/models, one a name."""
        return [self.info(name) for name in self.names]

    def info(self, name: str) -> ModelInfo:
        """Its entry under one of its names; where it comes from is nobody's to know."""
        length = self.pool.context_length()
        return ModelInfo(
            id=name,
            created=self.created,
            max_model_len=msgspec.UNSET if length is None else length,
            state=ReplicaState.READY.value
            if self.pool.view().state is ReplicaState.READY
            else ReplicaState.STARTING.value,
        )

    def view(self) -> ReplicaView:
        """Its pool at this moment."""
        return self.pool.view()

    def tick(self) -> None:
        """Nothing is sampled here: probes do that."""


def admit_limits_of(settings: UpstreamSettings) -> AdmitLimits:
    """As many as its servers may have, and as many as may wait for them."""
    most = settings.max_concurrent * len(settings.urls) + settings.max_waiting
    return AdmitLimits(max_choices=most, max_waiting_tokens=WAITING_BYTES)


class Outlet:
    """Where an upstream's answer goes; counted before its last bytes leave."""

    def __init__(self, exchange: Exchange, stream: SseStream, journey: Journey) -> None:
        self._exchange = exchange
        self._stream = stream
        self._journey = journey

    async def stream(self, data: bytes, *, is_last: bool) -> None:
        """Events of a streamed answer."""
        if is_last:
            await self._journey.close(Outcome.OK)
        await self._stream.send(data, is_last=is_last)

    async def whole(self, body: bytes) -> None:
        """A complete answer."""
        await self._journey.close(Outcome.OK)
        await self._exchange.answer(200, body)


def call_of(
    exchange: Exchange,
    endpoint: str,
    request: ForwardedRequest,
    head: AnswerHead,
    route: Route | None,
) -> Call:
    """The request as the upstream's forwarder takes it."""
    limits = request.asker.tenant.limits
    return Call(
        id=exchange.id,
        endpoint=endpoint,
        request=request,
        shown=Shown(
            id=head.id,
            model=head.model,
            include_usage=request.include_usage,
            num_choices=request.n * request.num_prompts,
            is_native=TARGETS[endpoint].is_native,
        ),
        passed=passed_headers({name: exchange.header(name) for name in PASSED}),
        bound=None if route is None else route.max_tokens,
        counts_exactly=limits.tokens_per_minute is not None or limits.monthly_budget is not None,
    )
