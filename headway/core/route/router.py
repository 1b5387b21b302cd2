"""The router of one pool: who may be chosen, who is, and what became of it.

It keeps what it knows in step with what replicas report: a request is in flight from `sent` until
its replica says that it has ended, or is lost. Pure: whoever calls gives `now`.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from headway.core.base.units import Seconds
from headway.core.messages.health import StepReport
from headway.core.messages.path import EngineRequest, Finished, FinishReason, Started
from headway.core.route.breaker import Breaker, BreakerSettings
from headway.core.route.load import LoadBook
from headway.core.route.policy import PREFIX, Candidate, Choice, RoutePolicy
from headway.core.route.retry import RetryBudget, RetrySettings

# Codes of refusals: the replica is well, and another one may have room.
REFUSALS = frozenset({"queue_full", "deadline_unmeetable"})


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one pool's requests are spread over its replicas."""

    factor: float = 1.5  # how much later a request may end where its prompt is known
    retries: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()


class RouteCounts(msgspec.Struct):
    """What has been done so far, for metrics."""

    by_load: int = 0  # requests sent where the least work was
    by_prefix: int = 0  # sent where their prompt is known, although others had less work
    retried: int = 0  # sent again before their first token
    continued: int = 0  # went on at another replica after their first token
    broken: int = 0  # lost, and not gone on with


class Router:
    """Chooses among replicas that it is told are up."""

    def __init__(
        self, replicas: Sequence[str], policy: RoutePolicy, settings: RouterSettings | None = None
    ) -> None:
        settings = settings or RouterSettings()
        self.policy = policy
        self.book = LoadBook()
        self.budget = RetryBudget(settings.retries)
        self.counts = RouteCounts()
        self._breakers: Mapping[str, Breaker] = {
            replica: Breaker(settings.breaker) for replica in replicas
        }
        # Requests that have started there, and had no token yet.
        self._started: Mapping[str, set[str]] = {replica: set() for replica in replicas}

    def choose(self, up: Collection[str], request: EngineRequest, now: Seconds) -> Choice | None:
        """A replica of those that are up and not ejected; None when there is none.

        One that is returning gets a few requests at a time, unless there is no other.
        """
        tried = [each for each in up if not self._breakers[each].is_ejected(now)]
        trusted = [each for each in tried if self._may_take(each, now)]
        candidates = [self._candidate(each) for each in trusted or tried]
        return self.policy.choose(candidates, request.prompt, request.cache_salt)

    def sent(self, choice: Choice, request_id: str, request: EngineRequest) -> None:
        """The request goes to the chosen replica, which knows it by that id."""
        self.policy.sent(choice)
        new_tokens = max(0, len(request.prompt) - choice.matched)
        new_tokens += sum(len(each.token_ids) for each in request.emitted)
        self.book.sent(choice.id, request_id, new_tokens, request.num_choices)
        self._count(choice, 1)

    def not_taken(self, choice: Choice, request_id: str) -> None:
        """It could not be sent there after all."""
        self.book.ended(choice.id, request_id)
        self._count(choice, -1)

    def told(self, replica: str, report: StepReport, now: Seconds) -> None:
        """A replica has reported."""
        started = self._started[replica]
        for event in report.events:
            if isinstance(event, Started):
                self.book.started(replica, event.request_id)
                started.add(event.request_id)
            elif isinstance(event, Finished):
                started.discard(event.request_id)
                self._ended(replica, event, now)
            elif event.request_id in started:
                started.discard(event.request_id)
                self._breakers[replica].progressed(now)
        self.book.told(replica, report.status, now)

    def lost(self, replica: str) -> None:
        """Its process has gone."""
        self.book.lost(replica)
        self.policy.forget(replica)
        self._started[replica].clear()

    def back(self, replica: str, now: Seconds) -> None:
        """It is there again after a death or a stall, and has to show that it is well."""
        self._breakers[replica].restarted(now)

    def is_ejected(self, replica: str, now: Seconds) -> bool:
        """Whether nothing goes there, though it may be up."""
        return self._breakers[replica].is_ejected(now)

    def _count(self, choice: Choice, change: int) -> None:
        if choice.reason == PREFIX:
            self.counts.by_prefix += change
        else:
            self.counts.by_load += change

    def _may_take(self, replica: str, now: Seconds) -> bool:
        return self._breakers[replica].may_take(self.book.in_flight(replica), now)

    def _candidate(self, replica: str) -> Candidate:
        book = self.book
        return Candidate(
            replica,
            book.work(replica),
            book.prefill_rate,
            book.answer_s,
            book.last_sent(replica),
        )

    def _ended(self, replica: str, event: Finished, now: Seconds) -> None:
        is_natural = event.reason in (FinishReason.STOP, FinishReason.LENGTH)
        tokens = event.usage.completion_tokens if is_natural else 0
        self.book.ended(replica, event.request_id, tokens)
        if is_natural:
            self._breakers[replica].succeeded(now)
        elif event.reason is FinishReason.ERROR and is_replicas_fault(event):
            self._breakers[replica].failed(now)


def is_replicas_fault(event: Finished) -> bool:
    """False for what a client asked for and cannot have, and for a queue that is full."""
    return event.error_code in (None, "internal_error", "engine_lost", "replica_error")
