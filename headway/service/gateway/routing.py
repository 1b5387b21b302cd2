"""The step between parsing a request and sending it: which model answers, said to the client."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from headway.core.base.clock import Clock
from headway.core.messages.record import Route
from headway.core.route.choose import Ask, Choice, States
from headway.core.route.degrade import PoolState
from headway.core.route.features import Prompt
from headway.core.route.routing_metrics import (
    CASCADES,
    CONGESTED,
    DEGRADED,
    ESCALATION_RATE,
    ROUTE_AVOIDED,
    ROUTED,
)
from headway.core.route.table import AT, Found, unknown
from headway.core.tenancy.tenant import SloClass, Tenant
from headway.service.gateway.forwarded import ServedUpstream, ask_of_forwarded, text_of
from headway.service.gateway.generate import Request
from headway.service.gateway.http import Exchange
from headway.service.gateway.models import AnyServed
from headway.service.gateway.plan import Plan
from headway.service.observe.prometheus import Sample
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.openai.schema import ChatRequest, CompletionRequest
from headway.service.wire.transport import ReplicaState

log = logging.getLogger(__name__)

AnyRequest = Request | ForwardedRequest
MODALITY_OF: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
CHARS_PER_ID = 4  # of a prompt that came as token ids: about as long as English text
ANSWERS = frozenset({ReplicaState.READY})
WAKES = frozenset({ReplicaState.UNLOADED, ReplicaState.UNLOADING})


class Routed(NamedTuple):
    """A request, and where it goes."""

    ask: Ask
    choice: Choice
    served: AnyServed
    request: AnyRequest  # bounded as its route says
    plan: Plan  # by which it goes until its end

    @property
    def route(self) -> Route:
        """Where it goes, as its record tells it."""
        return self.choice.route

    @property
    def shown_model(self) -> str:
        """`model` of its answer: as the client named it, unless another one stood in."""
        route = self.route
        is_own = bool(route.asked) and route.degraded != "model"
        return route.asked if is_own else self.served.name


class Routing:
    """Routes requests of one gateway; used on its event loop only."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan  # of requests that come now; each holds it from its arrival to its end
        self._clock = clock
        self._old: list[Plan] = []  # that requests are still under way by
        self._avoided: set[tuple[str, str]] = set()  # (route, pool): told of in the log
        self._cascades: dict[str, list[int]] = {}  # pool -> answered first, of them escalated

    def replace(self, plan: Plan) -> None:
        """Route by this one from now on; what is under way goes on by the one it began with."""
        old, self.plan = self.plan, plan
        old.replaced()
        self._old = [each for each in (*self._old, old) if not each.is_over]
        self._avoided.clear()

    async def left(self, served: AnyServed) -> None:
        """Wait until no request that began before a change may go to this model any more."""
        for plan in tuple(self._old):
            if served in plan.models.all:
                await plan.over()

    def route(
        self,
        request: AnyRequest,
        request_id: str,
        version: str | None = None,
        plan: Plan | None = None,
    ) -> Routed:
        """Where the request goes; raises ModelNotFound and UnsupportedModality.

        version  as asked for beside the model's name
        plan     that the request holds; None: the one of now
        """
        plan = plan or self.plan
        if version is not None:
            request = msgspec.structs.replace(
                request, model=f"{request.model}{AT}{version}" if request.model else version
            )
        found = _found(plan, request.model, request.asker.tenant)
        ask = ask_of(request, request_id)
        choice = plan.chooser.choose(ask, found, _states(plan), self._clock.now())
        self._note(plan, found, choice)
        return _routed(plan, ask, choice, request)

    def helper(self, routed: Routed) -> Routed | None:
        """Where it goes when its pool has refused it before its first token; None: nowhere."""
        plan = routed.plan
        choice = plan.chooser.helper(routed.ask, routed.choice, _states(plan))
        if choice is None:
            return None
        self._count_degraded(routed.served, "model")
        return _routed(plan, routed.ask, choice, routed.request)

    def escalated(self, routed: Routed) -> Routed:
        """The second call of a cascade."""
        choice, cascade = routed.choice, routed.choice.cascade
        assert cascade is not None, "only a cascade escalates"
        route = msgspec.structs.replace(
            choice.route, model=cascade.then, reason="cascade:escalated"
        )
        choice = choice._replace(route=route, cascade=None)
        return _routed(routed.plan, routed.ask, choice, routed.request)

    def kept(self, routed: Routed) -> Routed:
        """The first answer of a cascade, in doubt, goes out as the second model is too busy."""
        self._count_degraded(routed.served, "model")
        return _changed(routed, degraded="model")

    def undegraded(self, routed: Routed) -> Routed | None:
        """Back to the model it was to go to, as the smaller one cannot take it."""
        choice = routed.choice
        if not choice.instead_of:
            return None
        route = msgspec.structs.replace(choice.route, model=choice.instead_of, degraded="")
        choice = choice._replace(route=route, instead_of="")
        return _routed(routed.plan, routed.ask, choice, routed.request)

    def answered_instead(self, routed: Routed) -> Routed:
        """The fixed answer goes out in place of the model's."""
        self._count_degraded(routed.served, "answer")
        return _changed(routed, degraded="answer")

    def is_congested(self, routed: Routed) -> bool:
        """Whether its pool is past its threshold for it."""
        congestion, model = routed.plan.chooser.congestion, routed.route.model
        return congestion is not None and congestion.is_congested(
            model, _states(routed.plan)(model), routed.ask.slo_class, self._clock.now()
        )

    def answer_instead(self, routed: Routed) -> tuple[str, float] | None:
        """The fixed answer, and after how many seconds without a token it is given."""
        return routed.plan.chooser.answer_instead(routed.ask)

    def tell(self, exchange: Exchange, routed: Routed) -> None:
        """Put the route into the answer's headers; once the answer has begun, into none."""
        if not routed.plan.table.is_configured:
            return
        route = routed.route
        exchange.add_header("x-headway-model", route.model)
        exchange.add_header("x-headway-route", route.reason)
        exchange.add_header("x-headway-version", route.version)
        if route.arm:
            exchange.add_header("x-headway-arm", route.arm)
        if route.degraded:
            exchange.add_header("x-headway-degraded", route.degraded)

    def cascaded(self, routed: Routed, doubt: str) -> None:
        """The first answer of a cascade was kept, or why it was not."""
        name = routed.served.name
        routed.served.meter.exporter.add(CASCADES, outcome=doubt or "kept")
        counts = self._cascades.setdefault(name, [0, 0])
        counts[0] += 1
        counts[1] += bool(doubt)

    def _count_degraded(self, served: AnyServed, kind: str) -> None:
        served.meter.exporter.add(DEGRADED, kind=kind)

    def _note(self, plan: Plan, found: Found, choice: Choice) -> None:
        """Count the decision, and log when a pool begins or ceases to be avoided."""
        if not plan.table.is_configured:
            return
        route = choice.route
        meter = plan.models.find(route.model).meter
        meter.exporter.add(ROUTED, route=found.name, version=route.version, reason=route.reason)
        if route.degraded:
            of = plan.models.find(choice.instead_of or route.model)
            self._count_degraded(of, route.degraded)
        if choice.avoided:
            avoided = plan.models.find(choice.avoided).meter
            avoided.exporter.add(ROUTE_AVOIDED, route=found.name)
            told = {"route": found.name, "model": choice.avoided, "instead": route.model}
            if (found.name, choice.avoided) not in self._avoided:
                self._avoided.add((found.name, choice.avoided))
                log.warning("route_avoids_unhealthy_model", extra=told)
        elif (found.name, route.model) in self._avoided:
            self._avoided.discard((found.name, route.model))
            log.info("route_uses_model_again", extra={"route": found.name, "model": route.model})

    def samples(self) -> Iterator[Sample]:
        """For a scrape, with the labels of each model."""
        for served in self.plan.models.all:
            yield from served.meter.exporter.named(self._samples(served.name))

    def _samples(self, pool: str) -> Iterable[Sample]:
        congestion = self.plan.chooser.congestion
        if congestion is not None:
            congested = congestion.congested(self._clock.now())
            for each in SloClass:
                labels = {"slo_class": each.name.lower()}
                yield Sample(CONGESTED, float((pool, each) in congested), labels)
        num_first, num_escalated = self._cascades.get(pool, (0, 0))
        if num_first:
            yield Sample(ESCALATION_RATE, num_escalated / num_first)


def _found(plan: Plan, asked: str | None, tenant: Tenant) -> Found:
    """What the name stands for; raises ModelNotFound.

    A model that the tenant may not use is, to that one, a model that there is not; who names
    none gets the first of those it may use. An alias is a name of its own, with each version.
    """
    allowed, table = tenant.models, plan.table
    found = table.find(asked)
    if not allowed or found.said in allowed or asked in allowed:
        return found
    if asked is None:
        known = [name for name in table.names if name in allowed]
        return table.find(known[0] if known else allowed[0])
    raise unknown(asked, allowed)


def _routed(plan: Plan, ask: Ask, choice: Choice, request: AnyRequest) -> Routed:
    if not isinstance(request, ForwardedRequest):  # who sends those on bounds them
        request = bounded(request, choice.route)
    return Routed(ask, choice, plan.models.find(choice.route.model), request, plan)


def _states(plan: Plan) -> States:
    return lambda pool: state_of(plan.models.find(pool))


def _changed(routed: Routed, *, degraded: str) -> Routed:
    route = msgspec.structs.replace(routed.route, degraded=degraded)
    return routed._replace(choice=routed.choice._replace(route=route))


def state_of(served: AnyServed) -> PoolState:
    """What its pool says of itself, and what this gateway has sent there that waits."""
    view, admitter = served.view(), served.admitter
    status, limits = view.status, admitter.limits
    is_up = view.state in ANSWERS or (view.on_demand and view.state is not ReplicaState.FAILED)
    waiting, rate = admitter.waiting_tokens, 0.0
    if status is not None:
        waiting, rate = max(waiting, status.waiting_tokens), status.prefill_rate
    wait, best_effort = waiting / rate if rate else 0.0, 0.0
    if isinstance(served, ServedUpstream):
        wait = served.pool.line.wait(SloClass.STANDARD)
        best_effort = served.pool.line.wait(SloClass.INTERNAL)
    elif status is not None:
        best_effort = status.best_effort_wait_s
    return PoolState(
        is_up=is_up or view.state in WAKES,
        wait_s=wait,
        best_effort_wait_s=best_effort,
        queue_share=max(
            admitter.num_choices / limits.max_choices, waiting / limits.max_waiting_tokens
        ),
        rung=status.rung if status is not None else 0,
    )


def bounded(request: Request, route: Route) -> Request:
    """The request, asking for no more tokens than its route lets it."""
    bound, wanted = route.max_tokens, request.sampling.max_tokens
    if bound is None or (wanted is not None and wanted <= bound):
        return request
    sampling = msgspec.structs.replace(request.sampling, max_tokens=bound)
    return msgspec.structs.replace(request, sampling=sampling)


def ask_of(request: AnyRequest, request_id: str) -> Ask:
    """What of a request decides where it goes."""
    if isinstance(request, ForwardedRequest):
        return ask_of_forwarded(request, request_id)
    asker, sampling = request.asker, request.sampling
    has_ids = is_scoring = False
    if isinstance(request, CompletionRequest):
        has_ids = not all(isinstance(prompt, str) for prompt in request.prompts)
        is_scoring = request.is_scoring
    is_bound = (
        has_ids
        or is_scoring
        or request.prompt_logprobs is not None
        or bool(sampling.logit_bias or sampling.stop_token_ids or sampling.allowed_token_ids)
    )
    return Ask(
        request_id=request_id,
        model=request.model,
        tenant=asker.tenant,
        slo_class=asker.slo_class,
        prompt=partial(_prompt_of, request),
        max_tokens=sampling.max_tokens,
        user=request.user,
        modalities=modalities_of(request),
        is_bound=is_bound or request.return_token_ids,
        min_tokens=sampling.min_tokens,
    )


def modalities_of(request: Request) -> frozenset[str]:
    """What the messages hold beside text."""
    if not isinstance(request, ChatRequest):
        return frozenset()
    kinds = {
        str(part.get("type"))
        for message in request.messages
        if isinstance(parts := message.get("content"), list)
        for part in parts
    }
    return frozenset(MODALITY_OF[kind] for kind in kinds if kind in MODALITY_OF)


def _prompt_of(request: Request) -> Prompt:
    if isinstance(request, CompletionRequest):
        return _completion_prompt(request)
    texts = [text_of(message.get("content")) for message in request.messages]
    asked = [
        text
        for message, text in zip(request.messages, texts, strict=True)
        if message["role"] == "user"
    ]
    return Prompt(
        text=asked[-1] if asked else texts[-1],
        num_chars=sum(map(len, texts)),
        max_tokens=request.sampling.max_tokens,
    )


def _completion_prompt(request: CompletionRequest) -> Prompt:
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    ids = [prompt for prompt in request.prompts if not isinstance(prompt, str)]
    num_chars = sum(map(len, texts)) + CHARS_PER_ID * sum(map(len, ids))
    longest = max(texts, key=len, default="")
    return Prompt(text=longest, num_chars=num_chars, max_tokens=request.sampling.max_tokens)
