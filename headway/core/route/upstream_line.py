"""Who waits here for a place at another server: an engine's own order, and its own forecast.

A server that is not ours orders what it has by itself; what it has not got yet is ordered here, as
an engine of ours orders its waiting sequences. A request is one stand-in sequence of the queue:
nothing of its prompt but its length matters.
"""

import itertools
from typing import NamedTuple

from headway.core.base.errors import DeadlineUnmeetable, QueueFull
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.sched.deadline import Ahead, Forecast, StepFacts, retry_after
from headway.core.sched.queue import Backlog, QueueLimits, WaitingQueue
from headway.core.sched.sequence import RequestGroup, Sequence
from headway.core.tenancy.tenant import NUM_CLASSES, SloClass

Place = Sequence  # in the line, or at a server
NO_LIMIT = 2**62  # of prompt tokens: the servers have their own
FADE = 0.2  # of what a first token took: how much the latest one counts
PROMPT, SAMPLING = (0,), Sampling(max_tokens=1, seed=0)  # of stand-ins


class Newcomer(NamedTuple):
    """What its place in the line goes by."""

    slo_class: int = SloClass.STANDARD
    tenant: str = ""
    weight: float = 1.0
    tokens: int = 1  # of its prompts, or about so many
    budget_s: float | None = None  # from now to its first token; None: nothing is promised


class UpstreamLine:
    """Strict by class with ageing, fair between tenants of a class, by deadline within each.

        place = line.enter(newcomer, now)
        line.join(place, now)       # raises; only if there is no room for it
        line.first(now)             # who goes next, when there is
        line.leave(place)
        line.took(place, now, is_full=...)
        line.ended(place, now, tokens)

    Rates are measured only while every place is taken: then what ends makes room.
    """

    def __init__(self, max_waiting: int, ageing: Seconds) -> None:
        self._queue = WaitingQueue(QueueLimits(max_waiting, NO_LIMIT), ageing)
        self._forecast = Forecast()
        self._running = [0] * NUM_CLASSES
        self._full_since: Seconds | None = None
        self._first_s = 0.0  # from being sent to its first token, as it went lately
        self._ids = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, who: Newcomer, now: Seconds, *, is_again: bool = False) -> Place:
        """Its stand-in; it waits for nothing yet.

        is_again  a further try of one that came before
        """
        request = EngineRequest(
            id="",
            prompt=PROMPT,
            sampling=SAMPLING,
            slo_class=who.slo_class,
            tenant=who.tenant,
            tenant_weight=who.weight,
            first_token_budget_s=who.budget_s,
        )
        place = Sequence(next(self._ids), RequestGroup(request, now), 0, ())
        place.num_prompt = max(1, who.tokens)
        if not is_again:
            self._forecast.offered(who.slo_class, place.num_prompt, now)
        return place

    def join(self, place: Place, now: Seconds) -> None:
        """Wait from now on; raises QueueFull and DeadlineUnmeetable, with when to come again."""
        request = place.group.request
        ahead = self._ahead(
            request.slo_class,
            self._queue.before(
                request.slo_class, request.tenant, request.tenant_weight, place.num_prompt
            ),
        )
        wait = self._forecast.wait(ahead, request.slo_class)
        problem = self._queue.problem_with(1, place.num_prompt, 0, request.slo_class)
        if problem is not None:
            raise QueueFull(f"the servers behind this model are full: {problem}", retry_after(wait))
        budget = request.first_token_budget_s
        if budget is not None:
            tokens = place.num_prompt
            excess = self._forecast.excess(ahead, request.slo_class, tokens, budget)
            if excess > 0.0:
                raise _unmeetable(budget, f"the line for it takes {wait:.1f} s", excess)
        self._queue.push(place, now)

    def leave(self, place: Place) -> None:
        """It waits no longer: it has a place, was refused, or its client has gone."""
        self._queue.remove(place)

    def first(self, now: Seconds) -> Place | None:
        """Who goes next."""
        self._queue.age(now)
        for rank in range(NUM_CLASSES):
            found = self._queue.first(rank)
            if found is not None:
                return found
        return None

    def patience(self, place: Place, now: Seconds) -> float | None:
        """Seconds that it may still wait here, its server needing time too; None: any."""
        budget = place.group.request.first_token_budget_s
        if budget is None:
            return None
        until = place.group.arrived + max(budget / 2, budget - self._first_s)
        return max(0.0, until - now)

    def too_late(self, place: Place) -> DeadlineUnmeetable:
        """The error of one whose patience is over."""
        request = place.group.request
        budget = request.first_token_budget_s or 0.0
        excess = Seconds(max(self.wait(request.slo_class) - budget, budget))
        return _unmeetable(budget, "no server behind this model had room in time", excess)

    def wait(self, slo_class: int) -> Seconds:
        """How long one of this class would wait that came now, behind all that waits."""
        if not len(self._queue):
            return Seconds(0.0)
        ahead = self._ahead(slo_class, self._queue.up_to(slo_class))
        return self._forecast.wait(ahead, slo_class)

    def took(self, place: Place, now: Seconds, *, is_full: bool) -> None:
        """It has a place at a server; `is_full` says that it was the last one."""
        self._queue.charge(place, 0, place.num_prompt)
        self._running[place.group.request.slo_class] += 1
        if is_full and self._full_since is None:
            self._full_since = now

    def began(self, took_s: float) -> None:
        """A first token came so long after its request was sent."""
        self._first_s += FADE * (took_s - self._first_s) if self._first_s else took_s

    def ended(self, place: Place, now: Seconds, tokens: int) -> None:
        """Its place is free; its answer had so many tokens."""
        slo_class = place.group.request.slo_class
        self._queue.charge(place, place.num_prompt, place.num_prompt + tokens)
        self._running[slo_class] -= 1
        if self._full_since is None:
            return
        prompts = [0] * NUM_CLASSES
        prompts[slo_class] = place.num_prompt
        took = max(0.0, now - self._full_since)
        facts = StepFacts(tuple(prompts), ended=1, was_full=True, seconds=took)
        self._forecast.took_step(facts, now)
        self._full_since = None

    def _ahead(self, slo_class: int, before: Backlog) -> Ahead:
        is_contended = (
            any(self._running[:slo_class]) or self._queue.up_to(slo_class - 1).sequences > 0
        )
        return Ahead(before.tokens, before.sequences, 0, is_contended)


def _unmeetable(budget: float, why: str, excess: Seconds) -> DeadlineUnmeetable:
    return DeadlineUnmeetable(
        f"the first token is promised within {budget:.3g} s, and {why}", retry_after(excess)
    )
