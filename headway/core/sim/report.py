"""What the clients of a run saw: one record a request, and the figures of them all."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import msgspec

PERCENTILES = (50, 90, 99)


class Outcome(Enum):
    """How a request ended, seen by its client."""

    ANSWERED = "answered"
    REFUSED = "refused"  # it was told so, by an error
    LOST = "lost"  # neither: silence is a bug


@dataclass(slots=True)
class Record:
    """What happened to one request; seconds on one clock."""

    id: str
    group: str
    arrived: float
    tenant: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    token_times: list[float] = field(default_factory=list)
    finished: float | None = None
    outcome: Outcome = Outcome.LOST
    reason: str | None = None  # code of the refusal
    retry_after_s: float | None = None
    output_tokens: int | None = None  # where a time may stand for several tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.token_times) if self.output_tokens is None else self.output_tokens

    @property
    def ttft(self) -> float:
        """Seconds to the first token; only of an answered request."""
        return self.token_times[0] - self.arrived

    @property
    def e2e(self) -> float:
        """Seconds to the end; only of an answered request."""
        assert self.finished is not None, f"request {self.id} has not ended"
        return self.finished - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One latency over all answers, in seconds; all None when there were none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of requests came to."""

    sent: int
    answered: int
    refused: int
    lost: int  # sent - answered - refused
    good: int  # answered within the group's target for the first token
    reasons: dict[str, int]  # of refusals
    retry_after_s: Latency  # as told with refusals
    refused_after_s: Latency  # from arrival to the refusal
    ttft: Latency
    itl: Latency
    e2e: Latency
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    seconds: float  # from the first arrival to the last end
    requests_s: float  # answered
    output_tokens_s: float
    goodput_s: float  # answers within their target, a second
    total: Figures
    groups: dict[str, Figures]
    utilisation: float | None = None  # running sequences over slots, averaged over `seconds`


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks of a sorted, non-empty sequence."""
    position = percent / 100 * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def latency(values: Iterable[float]) -> Latency:
    """Mean and percentiles of seconds."""
    ordered = sorted(values)
    if not ordered:
        return Latency(mean=None, p50=None, p90=None, p99=None, max=None)
    p50, p90, p99 = (percentile(ordered, percent) for percent in PERCENTILES)
    mean = sum(ordered) / len(ordered)
    return Latency(mean=mean, p50=p50, p90=p90, p99=p99, max=ordered[-1])


def figures(records: Sequence[Record], targets: Mapping[str, float]) -> Figures:
    """Figures of some records; `targets` are seconds to the first token, by group.

    A group without a target is best effort: each of its answers is a good one.
    """
    answered = [r for r in records if r.outcome is Outcome.ANSWERED]
    refused = [r for r in records if r.outcome is Outcome.REFUSED]
    told = [r.reason or "unknown" for r in refused]
    return Figures(
        sent=len(records),
        answered=len(answered),
        refused=len(refused),
        lost=len(records) - len(answered) - len(refused),
        good=sum(r.ttft <= targets.get(r.group, math.inf) for r in answered),
        reasons={reason: told.count(reason) for reason in sorted(set(told))},
        retry_after_s=latency(r.retry_after_s for r in refused if r.retry_after_s is not None),
        refused_after_s=latency(r.e2e for r in refused),
        ttft=latency(r.ttft for r in answered),
        itl=latency(gap for r in answered for gap in r.gaps),
        e2e=latency(r.e2e for r in answered),
        prompt_tokens=sum(r.prompt_tokens for r in answered),
        cached_tokens=sum(r.cached_tokens for r in answered),
        output_tokens=sum(r.num_tokens for r in answered),
    )


def summarize(
    records: Sequence[Record],
    targets: Mapping[str, float] | None = None,
    *,
    slot_seconds: float | None = None,
    num_slots: int = 1,
) -> Summary:
    """All figures of a run; `slot_seconds` are what its sequences ran for, together."""
    targets = targets or {}
    total = figures(records, targets)
    began = min((r.arrived for r in records), default=0.0)
    ended = max((r.finished for r in records if r.finished is not None), default=began)
    seconds = ended - began
    share = 1.0 / seconds if seconds > 0 else 0.0
    groups = sorted({r.group for r in records})
    return Summary(
        seconds=seconds,
        requests_s=total.answered * share,
        output_tokens_s=total.output_tokens * share,
        goodput_s=total.good * share,
        total=total,
        groups={name: figures([r for r in records if r.group == name], targets) for name in groups},
        utilisation=None if slot_seconds is None else slot_seconds * share / num_slots,
    )
