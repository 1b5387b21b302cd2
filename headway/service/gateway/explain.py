"""A request's record in plain English: what happened to it, and why."""

from collections.abc import Mapping

from headway.core.base.metrics import Outcome
from headway.core.messages.path import CacheMiss
from headway.core.messages.record import RequestRecord
from headway.service.openai.usage_schema import Explanation

MICROS = 1_000_000
MISSES: Mapping[str, str] = {
    CacheMiss.NONE.value: "all that can be shared was found",
    CacheMiss.DIFFERS.value: "nothing that was computed lately goes on like it",
    CacheMiss.EVICTED.value: "the next block had been there and was dropped for others",
    CacheMiss.OTHER_SALT.value: "it begins like a prompt of another tenant or salt, and those "
    "never share",
    CacheMiss.NO_ROOM.value: "the next block was in host memory, and no device block was free",
    CacheMiss.NOT_SHARED.value: "the cache is off, or it needed every position computed",
}
OUTCOMES: Mapping[str, str] = {
    Outcome.OK.value: "It was answered completely",
    Outcome.CANCELLED.value: "Its client left before the answer was complete",
    Outcome.INVALID.value: "It was refused because the client must change it",
    Outcome.REJECTED_LIMIT.value: "It was refused for a limit of its tenant's own",
    Outcome.REJECTED_QUEUE_FULL.value: "It was refused because the queue was full",
    Outcome.REJECTED_DEADLINE.value: "It was refused because its first token would have come "
    "later than its class is promised",
    Outcome.REJECTED_SHUTTING_DOWN.value: "It was refused because the server was shutting down",
    Outcome.REJECTED_NOT_READY.value: "It was refused because no replica could answer",
    Outcome.ERROR.value: "It failed",
    Outcome.LOST.value: "Its gateway died under it, and what is known of it was found afterwards",
}


def explain(record: RequestRecord) -> Explanation:
    """What happened to the request."""
    topics = {
        "request": _request(record),
        "route": _route(record),
        "queue": _queue(record),
        "cache": _cache(record),
        "prompt": _prompt(record),
        "answer": _answer(record),
        "preemption": _preemption(record),
        "failover": _failover(record),
        "outcome": _outcome(record),
        "cost": _cost(record),
    }
    why = {topic: sentence for topic, sentence in topics.items() if sentence}
    return Explanation(request=record, why=why, text=" ".join(why.values()))


def _request(record: RequestRecord) -> str:
    who = f"tenant {record.tenant!r}" if record.tenant else "a client without a tenant"
    as_class = f" of class {record.slo_class}" if record.slo_class else ""
    key = f" with key {record.key_id}" if record.key_id else ""
    way = "streamed" if record.is_stream else "in one piece"
    return (
        f"This request to {record.endpoint} came from {who}{as_class}{key}, to be answered {way}."
    )


def _route(record: RequestRecord) -> str:
    route = record.route
    if route is None:
        return "It ended before it was known where it should go."
    asked = f"It asked for {route.asked!r}" if route.asked else "It named no model"
    arm = f", arm {route.arm}" if route.arm else ""
    replica = f", replica {record.replica}" if record.replica else ""
    lesser = {
        "model": "To spare it a refusal, a smaller model took it.",
        "max_tokens": "To spare it a refusal, its answer was bounded to "
        f"{route.max_tokens} tokens.",
        "answer": "No token of that came in time, so it got the operator's text.",
    }
    degraded = f" {lesser.get(route.degraded, route.degraded)}" if route.degraded else ""
    return (
        f"{asked} and went to {route.model} ({route.version}{arm}{replica}) "
        f"by {route.reason}.{degraded}"
    )


def _works_elsewhere(record: RequestRecord) -> bool:
    """Whether another server had it: those are named host:port, our replicas by a number."""
    return ":" in record.replica


def _queue(record: RequestRecord) -> str:
    if record.limit:
        return f"Its tenant's limit of {record.limit} let it go no further."
    if _works_elsewhere(record):
        return _line(record)
    if not record.prompt_tokens:
        if record.queue_s:
            return f"It waited {_time(record.queue_s)} in the engine's queue and was not begun."
        return "No engine began to work on it."
    if record.outcome == Outcome.LOST.value and not record.queue_s:
        return "How long it waited is not known."
    return f"It waited {_time(record.queue_s)} in the engine's queue."


def _line(record: RequestRecord) -> str:
    """Before another server had it: only what it waited at this gateway is seen from here."""
    waited = _time(record.queue_s)
    if record.num_chunks:  # as of a cascade
        return (
            f"It was worked on by an engine and by another server, and waited {waited} for one of "
            "them."
        )
    if not record.finish:  # which is when the times are told
        begun = "" if record.prompt_tokens else ", which did not begin to answer"
        return f"It was sent on to another server{begun}; how long it waited is not known."
    tries = ", tries at other servers included," if record.failovers else ""
    return (
        f"It waited {waited} in this gateway's own line{tries} and was then sent on to another "
        "server."
    )


def _cache(record: RequestRecord) -> str:
    if _works_elsewhere(record) and record.cached_tokens and not record.miss_reason:
        return (
            f"Of its {record.prompt_tokens} prompt tokens {record.cached_tokens} came from a cache "
            "of that server, as it says."
        )
    if not record.prompt_tokens or not record.miss_reason:
        return ""
    host = record.cached_host_tokens
    from_host = f", {host} of them brought back from host memory" if host else ""
    miss = MISSES.get(record.miss_reason, record.miss_reason)
    return (
        f"Of its {record.prompt_tokens} prompt tokens {record.cached_tokens} came from the prefix "
        f"cache{from_host}: {miss}."
    )


def _prompt(record: RequestRecord) -> str:
    if not record.num_chunks:
        return ""
    steps = "one step" if record.num_chunks == 1 else f"{record.num_chunks} steps"
    return f"The rest of its prompt was computed in {steps} and {_time(record.prefill_s)}."


def _answer(record: RequestRecord) -> str:
    if not record.completion_tokens:
        return ""
    first = record.first_token_s
    after = f", the first after {_time(first)}" if first is not None else ""
    end = f", until {record.finish}" if record.finish else ""
    sent = record.sent_tokens
    unsure = f" (and perhaps {record.unsure_tokens} more)" if record.unsure_tokens else ""
    reached = "all of them" if sent == record.completion_tokens else f"{sent} of them"
    device = f", with {_time(record.device_s)} of device time" if record.device_s else ""
    tokens = "1 token" if record.completion_tokens == 1 else f"{record.completion_tokens} tokens"
    return (
        f"It generated {tokens}{after}{end}, in "
        f"{_time(record.decode_s)}{device}; {reached}{unsure} were sent."
    )


def _preemption(record: RequestRecord) -> str:
    if not record.preemptions:
        return ""
    times = "once" if record.preemptions == 1 else f"{record.preemptions} times"
    kept = record.preemptions_swapped
    how = f", {kept} of those keeping its blocks in host memory" if kept else ""
    again = record.recomputed_tokens
    return (
        f"It was stopped {times} to make room for others{how}; {again} tokens were computed again."
    )


def _failover(record: RequestRecord) -> str:
    if not record.failovers:
        return ""
    times = "once" if record.failovers == 1 else f"{record.failovers} times"
    if _works_elsewhere(record):
        return f"A server failed or had no room, and it was sent on to another one, {times}."
    return f"A replica failed under it, and it went on at another one, {times}."


def _outcome(record: RequestRecord) -> str:
    said = OUTCOMES.get(record.outcome, f"It ended as {record.outcome}")
    code = f" ({record.error_code})" if record.error_code else ""
    after = f", after {_time(record.took_s)}" if record.took_s else ""
    return f"{said}{code}{after}."


def _cost(record: RequestRecord) -> str:
    if not record.cost:
        return "It costs nothing."
    surely = ", for the tokens that were surely sent" if record.unsure_tokens else ""
    return f"It costs {record.cost / MICROS:.6f}{surely}."


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
