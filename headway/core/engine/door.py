"""The engine's door: whether a request may join the line now, and if not, when."""

import math

from headway.core.base.errors import DeadlineUnmeetable, QueueFull
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest
from headway.core.sched.deadline import Ahead, Forecast, StepFacts, retry_after, running_tokens
from headway.core.sched.pressure import Rung, Signals
from headway.core.sched.queue import Backlog
from headway.core.sched.scheduler import Scheduler
from headway.core.tenancy.tenant import SloClass

WATCH_EVERY = 0.05  # seconds; looking more often costs more than it tells


class Door:
    """Asks the queue's bounds, the forecast and the ladder; refuses before anything is spent."""

    def __init__(self, scheduler: Scheduler, ageing: Seconds) -> None:
        self._scheduler = scheduler
        self._patience = ageing
        self.forecast = Forecast()
        # How long best effort that came then would have waited for its first token.
        self.best_effort_wait = Seconds(0.0)
        self._watched = -math.inf

    def ask(self, request: EngineRequest, now: Seconds) -> None:
        """Raises QueueFull or DeadlineUnmeetable when it may not join, with when to come again."""
        scheduler, slo_class, tokens = self._scheduler, request.slo_class, len(request.prompt)
        self.watch(now)
        self.forecast.offered(slo_class, tokens, now)
        ahead, wait = self._wait(slo_class, request.tenant, request.tenant_weight, tokens)
        problem = scheduler.queue.problem_with(
            request.num_choices, tokens, scheduler.slots_for(slo_class), slo_class
        )
        if problem is not None:
            raise QueueFull(f"the engine's queue is full: {problem}", retry_after(wait))
        is_refusing = scheduler.ladder.rung is Rung.REFUSE
        if slo_class == SloClass.INTERNAL and is_refusing and wait > self._patience / 2:
            raise QueueFull(
                f"best effort would wait {wait:.0f} s and is refused under this load",
                retry_after(Seconds(wait - self._patience / 2)),
            )
        budget = request.first_token_budget_s
        if budget is None:
            return
        excess = self.forecast.excess(ahead, slo_class, tokens, budget)
        if excess > 0.0:
            raise DeadlineUnmeetable(
                f"the first token is promised within {budget:g} s, and the line before it takes "
                f"{wait:.1f} s",
                retry_after(excess),
            )

    def took_step(self, facts: StepFacts, now: Seconds) -> None:
        """A step was committed."""
        self.forecast.took_step(facts, now)

    def watch(self, now: Seconds) -> None:
        """Let the ladder see how things stand."""
        scheduler, kv = self._scheduler, self._scheduler.kv
        is_idle = not scheduler.running and not len(scheduler.queue)
        if not is_idle and 0.0 <= now - self._watched < WATCH_EVERY:
            return
        self._watched = now
        wait = Seconds(0.0) if is_idle else self._best_effort()
        self.best_effort_wait = wait
        scheduler.ladder.observe(
            Signals(
                free_share=kv.num_available / kv.num_blocks,
                preemptions=scheduler.preemptions.for_blocks,
                delay=wait,
                is_idle=is_idle,
                num_running=len(scheduler.running),
            ),
            now,
        )

    def _best_effort(self) -> Seconds:
        """Behind all that waits: whoever comes next is likely one of those who wait already."""
        waiting = self._scheduler.queue.up_to(SloClass.INTERNAL)
        return self._behind(SloClass.INTERNAL, waiting)[1]

    def _wait(
        self, slo_class: int, tenant: str, weight: float, tokens: int
    ) -> tuple[Ahead, Seconds]:
        scheduler = self._scheduler
        before = scheduler.queue.before(slo_class, tenant, weight, tokens)
        return self._behind(slo_class, before)

    def _behind(self, slo_class: int, before: Backlog) -> tuple[Ahead, Seconds]:
        scheduler = self._scheduler
        running = scheduler.running.values()
        is_contended = (
            any(s.group.request.slo_class < slo_class for s in running)
            or scheduler.queue.up_to(slo_class - 1).sequences > 0
        )
        ahead = Ahead(
            running_tokens(running, slo_class) + before.tokens,
            before.sequences,
            scheduler.slots_for(slo_class),
            is_contended,
        )
        return ahead, self.forecast.wait(ahead, slo_class)
