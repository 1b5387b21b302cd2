"""What is measured of requests: one outcome each, their times and their tokens."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from headway.core.base import metrics
from headway.core.base.clock import Clock
from headway.core.base.errors import (
    ClientError,
    ClientSilent,
    DeadlineUnmeetable,
    HeadwayError,
    QueueFull,
    RateLimited,
    ReplicaNotReady,
    ShuttingDown,
    Unauthorized,
    UpstreamBusy,
)
from headway.core.base.metrics import Outcome
from headway.core.base.units import Seconds
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
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.metrics import CLASS_FIRST_TOKEN, CLASS_REQUESTS
from headway.core.tenancy.tenant import SloClass
from headway.service.gateway.notes import Made
from headway.service.observe.prometheus import Labelled

log = logging.getLogger(__name__)

FINISHED_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}
OUTCOMES: Sequence[tuple[type[HeadwayError], Outcome]] = (
    (Unauthorized, Outcome.UNAUTHORIZED),
    (ClientSilent, Outcome.CANCELLED),
    (RateLimited, Outcome.REJECTED_LIMIT),
    (ClientError, Outcome.INVALID),
    (QueueFull, Outcome.REJECTED_QUEUE_FULL),
    (UpstreamBusy, Outcome.REJECTED_QUEUE_FULL),
    (DeadlineUnmeetable, Outcome.REJECTED_DEADLINE),
    (ShuttingDown, Outcome.REJECTED_SHUTTING_DOWN),
    (ReplicaNotReady, Outcome.REJECTED_NOT_READY),
)


def outcome_of(error: HeadwayError) -> Outcome:
    """How a request that met this error is counted."""
    return next((outcome for kind, outcome in OUTCOMES if isinstance(error, kind)), Outcome.ERROR)


class Meter:
    """Counts requests into the exporter; one a model."""

    def __init__(self, exporter: Labelled, clock: Clock, model: str) -> None:
        self.model = model
        self.exporter = exporter
        self.clock = clock
        self.num_open = 0

    def open(self, endpoint: str) -> "RequestMeter":
        """A request came in at this endpoint."""
        self.num_open += 1
        return RequestMeter(self, endpoint)

    def close(self, endpoint: str, outcome: Outcome) -> None:
        """It ended; called once by its RequestMeter."""
        self.num_open -= 1
        self.exporter.add(metrics.REQUESTS, endpoint=endpoint, outcome=outcome.value)


class _Part:
    """One engine request of it."""

    __slots__ = (
        *("end", "gaps", "generated", "is_estimate", "is_finished", "last_at"),
        *("num_prompt", "num_tokens", "request", "started"),
    )

    def __init__(
        self, exporter: Labelled, request: EngineRequest, estimate: int | None = None
    ) -> None:
        """estimate  of the prompt's tokens, where those are not known: the end tells them"""
        self.gaps = exporter.histogram(metrics.VLLM_INTER_TOKEN)
        self.generated = exporter.counter(metrics.VLLM_GENERATION_TOKENS)
        self.request = request
        self.num_prompt = len(request.prompt) if estimate is None else estimate
        self.is_estimate = estimate is not None
        self.num_tokens = 0
        self.started: Started | None = None
        self.end: Finished | None = None
        self.last_at: dict[int, Seconds] = {}  # choice -> replica clock of its last token
        self.is_finished = False

    @property
    def has_begun(self) -> bool:
        """Whether the engine computed anything of it."""
        made = self.num_tokens if self.end is None else self.end.usage.completion_tokens
        return self.started is not None or made > 0

    @property
    def usage(self) -> Usage:
        """As the engine told it at its end, or as far as it is known."""
        if self.end is not None:
            return self.end.usage
        started = self.started
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_tokens,
            cached_tokens=0 if started is None else started.cached_tokens,
            cached_host_tokens=0 if started is None else started.cached_host_tokens,
            is_estimated=self.is_estimate,
        )


class RequestMeter:
    """One request, from its arrival to its one outcome."""

    def __init__(self, meter: Meter, endpoint: str) -> None:
        self._meter = meter
        self._endpoint = endpoint
        self._arrived = meter.clock.now()
        self._first_token_s: float | None = None
        self._slo_class: SloClass | None = None
        self._parts: dict[str, _Part] = {}
        self._is_closed = False

    @property
    def took_s(self) -> Seconds:
        """Since it came, by a clock that nobody sets."""
        return Seconds(self._meter.clock.now() - self._arrived)

    def belongs_to(self, meter: Meter, slo_class: SloClass) -> None:
        """It is known now which model it is for; until here it counted with `meter.open`'s."""
        self._slo_class = slo_class
        self._meter.num_open -= 1
        meter.num_open += 1
        self._meter = meter

    def sent(self, requests: Sequence[EngineRequest]) -> None:
        """These went to the engine for it."""
        exporter = self._meter.exporter
        self._parts |= {request.id: _Part(exporter, request) for request in requests}

    def forwarded(self, request: EngineRequest, prompt_tokens: int) -> None:
        """It went to a server that is not ours; its prompt has that many tokens or so."""
        self._parts[request.id] = _Part(self._meter.exporter, request, prompt_tokens)

    def saw(self, event: Event) -> None:
        """An event of one of its engine requests."""
        if isinstance(event, Tokens):
            self.gained(event.request_id, event.choice, len(event.token_ids), event.at)
            return
        part = self._parts[event.request_id]
        if isinstance(event, Finished):
            self._saw_end(part, event)
            return
        part.started = event
        if event.miss_reason is not CacheMiss.NONE:
            reason = event.miss_reason.value
            self._meter.exporter.add(metrics.PREFIX_MISSES, reason=reason)

    def heard(self, event: Finished) -> None:
        """The engine told the end of what was cancelled, after the request was closed."""
        self._parts[event.request_id].end = event

    def made(self) -> Made:
        """Tokens that engines have worked on for it so far; their cost is not known here."""
        usages = [part.usage for part in self._parts.values() if part.has_begun]
        return Made(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
        )

    def opened(self, record: RequestRecord, prompt_tokens: int, max_tokens: int) -> RequestRecord:
        """The record of a request that nothing was computed of yet."""
        return msgspec.structs.replace(
            record,
            endpoint=self._endpoint,
            slo_class="" if self._slo_class is None else self._slo_class.name.lower(),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )

    def fill(self, record: RequestRecord) -> RequestRecord:
        """The record with all that was measured of the request."""
        parts = self._parts.values()
        begun = [part for part in parts if part.has_begun]
        usages = [part.usage for part in begun]
        misses = [part.started.miss_reason for part in begun if part.started is not None]
        ends = [part.end for part in parts if part.end is not None]
        return msgspec.structs.replace(
            record,
            endpoint=self._endpoint,
            slo_class="" if self._slo_class is None else self._slo_class.name.lower(),
            first_token_s=self._first_token_s,
            finish=ends[-1].reason.value if ends else "",
            replica=next((end.replica for end in ends if end.replica), record.replica),
            failovers=max([record.failovers, *(end.failovers for end in ends)]),
            num_choices=sum(part.request.num_choices for part in parts),
            max_tokens=sum(_most(part.request) for part in parts),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            cached_host_tokens=sum(usage.cached_host_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            recomputed_tokens=sum(usage.recomputed_tokens for usage in usages),
            # Prompts of one request run side by side: its times are those of the slowest.
            queue_s=max((part.usage.queue_s for part in parts), default=0.0),
            prefill_s=max((usage.prefill_s for usage in usages), default=0.0),
            decode_s=max((usage.decode_s for usage in usages), default=0.0),
            device_s=sum(usage.device_s for usage in usages),
            num_chunks=sum(usage.num_chunks for usage in usages),
            preemptions=sum(usage.preemptions for usage in usages),
            preemptions_swapped=sum(usage.preemptions_swapped for usage in usages),
            is_estimated=any(usage.is_estimated for usage in usages),
            miss_reason=next(
                (miss.value for miss in misses if miss is not CacheMiss.NONE),
                CacheMiss.NONE.value if misses else "",
            ),
        )

    def fail(self, error: HeadwayError, shown_id: str) -> Outcome:
        """The request ended with this error; what had been taken was not rejected."""
        outcome = outcome_of(error)
        if outcome is Outcome.REJECTED_SHUTTING_DOWN and self._parts:
            outcome = Outcome.ERROR
        self.close(outcome, shown_id)
        return outcome

    def close(self, outcome: Outcome, shown_id: str) -> None:
        """The request ended; only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        took = self._meter.clock.now() - self._arrived
        if outcome is Outcome.OK:
            self._observe(metrics.E2E_MS, metrics.VLLM_E2E, took)
        for part in self._parts.values():
            if not part.is_finished:
                self._count_end(
                    FinishReason.CANCELLED if outcome is Outcome.CANCELLED else FinishReason.ERROR
                )
        self._meter.close(self._endpoint, outcome)
        if self._slo_class is not None:
            name = self._slo_class.name.lower()
            self._meter.exporter.add(CLASS_REQUESTS, slo_class=name, outcome=outcome.value)
        log.info(
            "request_finished",
            extra={
                "request_id": shown_id,
                "model": self._meter.model,
                "endpoint": self._endpoint,
                "outcome": outcome.value,
                "took_s": took,
                "first_token_s": self._first_token_s,
                "prompt_tokens": sum(part.num_prompt for part in self._parts.values()),
                "completion_tokens": sum(part.num_tokens for part in self._parts.values()),
            },
        )

    def gained(self, request_id: str, choice: int, num_tokens: int, at: Seconds) -> None:
        """A choice of one of its engine requests has more tokens; see `Tokens.at`."""
        part = self._parts[request_id]
        if part.num_tokens == 0:
            self._saw_first(part)
        last = part.last_at.get(choice)
        if last is not None and num_tokens:
            part.gaps.put(max(0.0, at - last) / num_tokens, num_tokens)
        part.last_at[choice] = at
        part.num_tokens += num_tokens
        part.generated.value += num_tokens

    def _saw_first(self, part: _Part) -> None:
        exporter = self._meter.exporter
        if self._first_token_s is None:
            self._first_token_s = self._meter.clock.now() - self._arrived
            self._observe(metrics.FIRST_TOKEN_MS, metrics.VLLM_FIRST_TOKEN, self._first_token_s)
            if self._slo_class is not None:
                labels = {"slo_class": self._slo_class.name.lower()}
                exporter.observe(CLASS_FIRST_TOKEN, self._first_token_s, labels=labels)
        if not part.is_estimate:
            exporter.add(metrics.VLLM_PROMPT_TOKENS, part.num_prompt)

    def _saw_end(self, part: _Part, event: Finished) -> None:
        exporter = self._meter.exporter
        part.is_finished = True
        part.end = event
        self._count_end(event.reason)
        usage = event.usage
        if part.is_estimate:
            part.num_prompt = usage.prompt_tokens
            exporter.add(metrics.VLLM_PROMPT_TOKENS, part.num_prompt)
        # The engine may count an end token that brought no text and so no event.
        unseen = max(0, usage.completion_tokens - part.num_tokens)
        exporter.add(metrics.VLLM_GENERATION_TOKENS, unseen)
        part.num_tokens += unseen
        exporter.add(metrics.CACHED_TOKENS, usage.cached_tokens)
        if event.reason in {FinishReason.STOP, FinishReason.LENGTH}:
            exporter.observe(metrics.VLLM_QUEUE_TIME, usage.queue_s)
            exporter.observe(metrics.VLLM_PREFILL_TIME, usage.prefill_s)
            exporter.observe(metrics.VLLM_DECODE_TIME, usage.decode_s)

    def _count_end(self, reason: FinishReason) -> None:
        self._meter.exporter.add(metrics.VLLM_SUCCESS, finished_reason=FINISHED_REASONS[reason])

    def _observe(self, ms: metrics.Metric, seconds: metrics.Metric, value: float) -> None:
        self._meter.exporter.observe(ms, value * 1000.0)
        self._meter.exporter.observe(seconds, value)


def _most(request: EngineRequest) -> int:
    """Tokens that it may generate."""
    return request.num_choices * request.sampling.max_tokens
