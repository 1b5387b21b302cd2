"""Refuse at the door what would not meet its promise: how long the line before it takes.

Rates are measured over wall time and fade, so that they are those of the last seconds. What
was never measured refuses nobody.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.base.units import Seconds
from headway.core.sched.sequence import Sequence
from headway.core.tenancy.tenant import NUM_CLASSES, SloClass

MEMORY = 10.0  # seconds after which a measurement counts a third
LEAST_SHARE = 0.05  # of the capacity that a class is taken to have left, whatever goes before it
FULL = 0.95  # of the capacity; what arrives beyond is more than there is
# Of the time that there is for waiting. Under lasting overload everybody who is taken is taken
# at the limit, and answers end when they will: at the whole time every second one would be late.
PRUDENCE = 0.4
LEAST_SECONDS = 0.2  # of measured time before a rate is believed
MIN_RETRY = Seconds(1.0)
MAX_RETRY = Seconds(60.0)


class StepFacts(NamedTuple):
    """What one step did."""

    prompt_tokens: tuple[int, ...]  # computed, a class
    ended: int  # sequences
    was_full: bool  # no slot was free while it ran
    seconds: float  # of the step


class Ahead(NamedTuple):
    """What stands before a request that would join now."""

    tokens: int  # prompt tokens: of running sequences, and of those that wait before it
    sequences: int  # that wait before it
    slots: int  # free, or held by less important ones
    is_contended: bool = True  # more important ones run or wait, and more of them may come


@dataclass(slots=True)
class _Sums:
    """Sums that fade with time, all alike, so that their quotients are recent means."""

    at: float = -math.inf
    elapsed: float = 0.0
    prefill_s: float = 0.0  # of steps with prompts
    prompt_tokens: list[float] = field(default_factory=lambda: [0.0] * NUM_CLASSES)
    offered: list[float] = field(default_factory=lambda: [0.0] * NUM_CLASSES)
    full_s: float = 0.0  # of steps without a free slot
    ended: float = 0.0  # in them

    def fade(self, now: float) -> None:
        passed = max(0.0, now - self.at) if self.at > -math.inf else 0.0
        by = math.exp(-passed / MEMORY)
        self.at = now
        self.elapsed = self.elapsed * by + passed
        self.prefill_s *= by
        self.full_s *= by
        self.ended *= by
        self.prompt_tokens = [by * tokens for tokens in self.prompt_tokens]
        self.offered = [by * tokens for tokens in self.offered]


class Forecast:
    """Measured rates of one engine, and what they mean for somebody who joins."""

    def __init__(self) -> None:
        self._sums = _Sums()

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens a second of steps that compute prompts, decodes beside them."""
        sums = self._sums
        if sums.prefill_s < LEAST_SECONDS:
            return None
        return sum(sums.prompt_tokens) / sums.prefill_s or None

    @property
    def end_rate(self) -> float | None:
        """Sequences that end a second while all slots are taken."""
        sums = self._sums
        return sums.ended / sums.full_s or None if sums.full_s >= LEAST_SECONDS else None

    def took_step(self, facts: StepFacts, now: Seconds) -> None:
        """A step was committed."""
        sums = self._sums
        sums.fade(now)
        if any(facts.prompt_tokens):
            sums.prefill_s += facts.seconds
            for slo_class, tokens in enumerate(facts.prompt_tokens):
                sums.prompt_tokens[slo_class] += tokens
        if facts.was_full:
            sums.full_s += facts.seconds
            sums.ended += facts.ended

    def offered(self, slo_class: int, prompt_tokens: int, now: Seconds) -> None:
        """A request of the class came, taken or not."""
        self._sums.fade(now)
        self._sums.offered[slo_class] += prompt_tokens

    def wait(self, ahead: Ahead, slo_class: int) -> Seconds:
        """Time until the first of its own tokens is computed."""
        of_time, of_slots = self._shares_left(slo_class) if ahead.is_contended else (1.0, 1.0)
        rate, end_rate = self.prefill_rate, self.end_rate
        for_tokens = ahead.tokens / (rate * of_time) if rate else 0.0
        short_of = ahead.sequences + 1 - ahead.slots
        for_slot = short_of / (end_rate * of_slots) if end_rate and short_of > 0 else 0.0
        return Seconds(max(for_tokens, for_slot))

    def excess(self, ahead: Ahead, slo_class: int, prompt_tokens: int, budget: float) -> Seconds:
        """By how much the wait is over what its promise leaves for waiting; 0 when it is not.

        Its own prompt is its own affair: half of the promise is always left for waiting. The
        most important class is only ever refused when more of it comes than fits.
        """
        rate = self.prefill_rate
        if rate is None or not (ahead.tokens or ahead.sequences):
            return Seconds(0.0)
        if slo_class == SloClass.VIP and self._offered_rate(slo_class) < FULL * rate:
            return Seconds(0.0)
        for_waiting = PRUDENCE * max(budget - prompt_tokens / rate, budget / 2)
        return Seconds(max(0.0, self.wait(ahead, slo_class) - for_waiting))

    def _shares_left(self, slo_class: int) -> tuple[float, float]:
        """What more important classes leave, as things went lately.

        Of the time for prompts, and of the slots that come free: when slots are what is short,
        the whole time is not used.
        """
        rate, sums = self.prefill_rate, self._sums
        if rate is None or sums.elapsed < LEAST_SECONDS:
            return 1.0, 1.0
        before, everybody = sum(sums.prompt_tokens[:slo_class]), sum(sums.prompt_tokens)
        of_time = 1.0 - before / (sums.elapsed * rate)
        of_slots = 1.0 - before / everybody if everybody else 1.0
        return max(LEAST_SHARE, of_time), max(LEAST_SHARE, of_slots)

    def _offered_rate(self, slo_class: int) -> float:
        return self._sums.offered[slo_class] / max(self._sums.elapsed, MEMORY / 2)


def retry_after(excess: Seconds) -> Seconds:
    """What to tell somebody refused: by then as much has drained as was too much."""
    return Seconds(min(MAX_RETRY, max(MIN_RETRY, excess)))


def running_tokens(running: Iterable[Sequence], slo_class: int) -> int:
    """Prompt tokens that running sequences of this class and above have yet to compute."""
    return sum(
        s.num_prompt - s.num_planned
        for s in running
        if s.num_planned < s.num_prompt and s.group.request.slo_class <= slo_class
    )
