"""Drives an EngineCore over an executor to the end, at depth 0 or 1."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.messages.path import EngineRequest, Event, Finished, FinishReason, Started, Tokens
from headway.core.messages.step import StepPlan


@dataclass
class Answer:
    """All that came back for one request."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    deltas: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    stop_reasons: dict[int, str | int | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None

    def take(self, event: Event) -> None:
        """Add one event; nothing may follow the end."""
        assert self.finished is None, f"{event} after the end"
        self.events.append(event)
        if isinstance(event, Started):
            assert self.started is None, "started twice"
            self.started = event
        elif isinstance(event, Finished):
            self.finished = event
        else:
            self._take_tokens(event)

    def _take_tokens(self, event: Tokens) -> None:
        assert event.choice not in self.reasons, "tokens after the choice's end"
        self.tokens[event.choice] += event.token_ids
        self.text[event.choice] += event.text
        self.deltas[event.choice].append(event.text)
        if event.finish_reason is not None:
            self.reasons[event.choice] = event.finish_reason
            self.stop_reasons[event.choice] = event.stop_reason


class Drive:
    """The driver's loop, one call a step, with every invariant checked between steps."""

    def __init__(self, core: EngineCore, executor: Executor, depth: int = 0) -> None:
        self.core = core
        self.executor = executor
        self.depth = depth
        self.now = 0.0
        self.answers: dict[str, Answer] = defaultdict(Answer)
        self.plans: list[StepPlan] = []
        self._in_flight: deque[StepPlan] = deque()

    def add(self, *requests: EngineRequest) -> None:
        """Put requests into the line."""
        for request in requests:
            self.core.add(request, Seconds(self.now))

    def cancel(self, request_id: str) -> None:
        """Cancel, and take its end."""
        self._take(self.core.cancel(request_id, Seconds(self.now)))

    def step(self) -> bool:
        """Plan one step and commit the oldest that is due; False when nothing is left."""
        self.now += 1.0
        plan = self.core.plan(Seconds(self.now))
        if plan is not None:
            self.plans.append(plan)
            self.executor.submit(plan)
            self._in_flight.append(plan)
        if plan is None or len(self._in_flight) > self.depth:
            self._commit()
        self.core.check()
        return bool(self._in_flight) or self.core.has_work()

    def run(self, requests: Iterable[EngineRequest] = (), limit: int = 10_000) -> dict[str, Answer]:
        """Run until nothing is left; more than `limit` steps means no progress."""
        self.add(*requests)
        for _ in range(limit):
            if not self.step():
                self._take(self.core.take_events())
                return self.answers
        raise AssertionError(f"no end after {limit} steps")

    def _commit(self) -> None:
        if self._in_flight:
            plan = self._in_flight.popleft()
            result = self.executor.collect()
            self._take(self.core.commit(plan, result, Seconds(self.now)))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self.answers[event.request_id].take(event)
