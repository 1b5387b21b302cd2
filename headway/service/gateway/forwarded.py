"""Requests for models behind other servers: how each endpoint reads them, and where answers go."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headway.core.base import metrics
from headway.core.base.metrics import Outcome
from headway.core.route.admit import AdmitLimits, Admitter
from headway.core.route.cascade import Confidence
from headway.core.route.choose import Ask
from headway.core.route.features import Prompt
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Journey
from headway.service.gateway.meter import Meter
from headway.service.gateway.stream import SseStream
from headway.service.observe.prometheus import Sample
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
from headway.service.upstream.outgoing import TARGETS, passed_headers
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.scores import Scoring, asks_for_scores, scored
from headway.service.upstream.settings import UpstreamSettings
from headway.service.wire.transport import ReplicaState, ReplicaView

Query = Mapping[str, str]
PARSERS: Mapping[str, Callable[[bytes, Query, ApiLimits], ForwardedRequest]] = {
    "chat_completions": lambda body, _, limits: parse_forwarded_chat(body, limits),
    "completions": lambda body, _, limits: parse_forwarded_completion(body, limits),
    "chat": parse_forwarded_native,
}
WAITING_BYTES = 1024 * 1024 * 1024  # no bound by tokens: the upstream has its own
# Fields with which another model could not stand in: it has other tokens.
BINDING = frozenset({"logit_bias", "stop_token_ids", "allowed_token_ids", "prompt_logprobs"})


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

    def view(self) -> ReplicaView:
        """How its pool is."""
        return self.pool.view()

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

    def tick(self) -> None:
        """Nothing is sampled here: probes do that."""

    def samples(self) -> Iterator[Sample]:
        """For a scrape."""
        yield from self.pool.samples()
        yield Sample(metrics.IN_FLIGHT, self.meter.num_open)
        yield Sample(metrics.QUEUE_LENGTH, self.admitter.num_waiting)


def admit_limits_of(settings: UpstreamSettings) -> AdmitLimits:
    """As many as its servers may have, and as many as may wait for them."""
    most = settings.max_concurrent * len(settings.urls) + settings.max_waiting
    return AdmitLimits(max_choices=most, max_waiting_tokens=WAITING_BYTES)


class Beginning:
    """How far the answer that a client gets has come."""

    def __init__(self) -> None:
        self.has_token = asyncio.Event()  # its first token is there, if not sent yet
        self.is_out = False  # something of it left, so that no other answer can be given

    def left(self) -> None:
        """Something of it goes out."""
        self.is_out = True
        self.has_token.set()


class Outlet:
    """Where an upstream's answer goes; counted before its last bytes leave."""

    def __init__(
        self,
        exchange: Exchange,
        stream: SseStream,
        journey: Journey,
        beginning: Beginning,
    ) -> None:
        self._exchange = exchange
        self._stream = stream
        self._journey = journey
        self._beginning = beginning

    def push(self, data: bytes, num_tokens: int) -> bool:
        """Events of a streamed answer, if they can leave at once; False: nothing was taken."""
        self._journey.giving(num_tokens)
        if not self._stream.push(data):
            return False
        self._beginning.left()
        self._journey.gave()
        return True

    async def stream(self, data: bytes, num_tokens: int, *, is_last: bool) -> None:
        """The same, once they can leave; the last ones complete the answer."""
        self._beginning.left()
        self._journey.giving(num_tokens)
        if is_last:
            self._journey.answered(num_tokens)
            await self._journey.close(Outcome.OK)
        await self._stream.send(data, is_last=is_last)
        self._journey.gave()

    async def whole(self, body: bytes, num_tokens: int) -> None:
        """A complete answer."""
        self._beginning.left()
        self._journey.giving(num_tokens)
        self._journey.answered(num_tokens)
        await self._journey.close(Outcome.OK)
        await self._exchange.answer(200, body)

    def begun(self) -> None:
        """The first tokens of a complete answer are there; the client gets them with the rest."""
        self._beginning.has_token.set()


def call_of(
    exchange: Exchange,
    endpoint: str,
    request: ForwardedRequest,
    head: AnswerHead,
    journey: Journey,
    call_id: str,
) -> Call:
    """The request as the upstream's forwarder takes it."""
    route = journey.route
    return Call(
        id=call_id,
        endpoint=endpoint,
        request=request,
        shown=Shown(
            id=head.id,
            model=head.model,
            include_usage=request.include_usage,
            num_choices=request.n * request.num_prompts,
            is_native=TARGETS[endpoint].is_native,
        ),
        passed=passed_headers(exchange.header),
        bound=None if route is None else route.max_tokens,
        counts_exactly=journey.depends_on_size,
    )


def judged(call: Call, judge: Confidence | None) -> Call:
    """The call, with its answer's log-probabilities told to who judges it by them."""
    if judge is None:
        return call
    scoring = Scoring(judge, is_shown=asks_for_scores(call.request))
    shown = call.shown._replace(scoring=scoring)
    return call._replace(request=scored(call.request), shown=shown)


def ask_of_forwarded(request: ForwardedRequest, request_id: str) -> Ask:
    """What of such a request decides where it goes."""
    fields, asker = request.fields, request.asker
    min_tokens = fields.get("min_tokens")
    return Ask(
        request_id=request_id,
        model=request.model,
        tenant=asker.tenant,
        slo_class=asker.slo_class,
        prompt=partial(_prompt_of, request),
        max_tokens=request.max_tokens,
        user=request.user,
        modalities=request.modalities,
        is_bound=_is_bound(fields),
        min_tokens=min_tokens if isinstance(min_tokens, int) else 0,
    )


def _prompt_of(request: ForwardedRequest) -> Prompt:
    texts = _texts_of(request.fields)
    return Prompt(
        text=texts[-1] if texts else "",
        num_chars=request.prompt_bytes(),
        max_tokens=request.max_tokens,
    )


def _is_bound(fields: Mapping[str, Any]) -> bool:
    """Whether there is anything that another model would read otherwise, or nothing it reads."""
    if not BINDING.isdisjoint(fields) and any(fields.get(name) for name in BINDING):
        return True
    messages = fields.get("messages")
    if isinstance(messages, list):
        return all(each.get("role") != "user" for each in messages)
    return not _texts_of(fields)


def _texts_of(fields: Mapping[str, Any]) -> list[str]:
    """Texts of the user's turns, or of prompts."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        prompt = fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        return [each for each in prompts if isinstance(each, str)]
    asked = [each.get("content") for each in messages if each.get("role") == "user"]
    return [text_of(content) for content in asked]


def text_of(content: object) -> str:
    """Of a message's content, whatever else it holds."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
