"""The clients of a run: they send a workload, and note what comes back."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from headway.core.base.errors import HeadwayError
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, Event, Finished, FinishReason, Started, Tokens
from headway.core.sim.gate import Continuous, Gate
from headway.core.sim.loop import Schedule
from headway.core.sim.report import Outcome, Record
from headway.core.sim.workload import Planned, Workload


class Replica(Protocol):
    """Where requests are sent."""

    def submit(self, request: EngineRequest) -> None:
        """Take a request; what comes of it is told to the clients later."""
        ...


class Recorder:
    """One record a request, filled from the replica's events."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._on_end: list[Callable[[str, Seconds], object]] = []

    def on_end(self, action: Callable[[str, Seconds], object]) -> None:
        """Call `action` with a request's id and the time whenever one has ended."""
        self._on_end.append(action)

    def sent(self, planned: Planned, now: Seconds) -> None:
        """A client sends a request."""
        self.records[planned.id] = Record(
            planned.id, planned.group, now, planned.tenant, len(planned.prompt)
        )

    def took(self, events: list[Event], now: Seconds) -> None:
        """Events of the replica reach their clients."""
        records = self.records
        for event in events:
            if isinstance(event, Tokens):
                records[event.request_id].token_times.append(now)
            elif isinstance(event, Started):
                records[event.request_id].cached_tokens = event.cached_tokens
            else:
                self._finished(event, now)

    def refused(self, request: EngineRequest, error: HeadwayError, now: Seconds) -> None:
        """The replica did not take a request."""
        retry_after = getattr(error, "retry_after_s", None)
        self._end(request.id, now, Outcome.REFUSED, error.code or "invalid", retry_after)

    def _finished(self, event: Finished, now: Seconds) -> None:
        if event.reason is FinishReason.ERROR:
            self._end(event.request_id, now, Outcome.REFUSED, event.error_code, event.retry_after_s)
        elif event.reason is FinishReason.CANCELLED:
            self._end(event.request_id, now, Outcome.REFUSED, "cancelled", None)
        else:
            self._end(event.request_id, now, Outcome.ANSWERED, None, None)

    def _end(
        self,
        request_id: str,
        now: Seconds,
        outcome: Outcome,
        reason: str | None,
        retry_after_s: float | None,
    ) -> None:
        record = self.records[request_id]
        assert record.finished is None, f"request {request_id} ended twice"
        record.finished, record.outcome = now, outcome
        record.reason, record.retry_after_s = reason, retry_after_s
        for action in self._on_end:
            action(request_id, now)


class Clients:
    """Sends a workload to a replica through a gate, on any schedule."""

    def __init__(
        self,
        workload: Workload,
        schedule: Schedule,
        replica: Replica,
        recorder: Recorder,
        gate: Gate | None = None,
    ) -> None:
        self._workload = workload
        self._schedule = schedule
        self._replica = replica
        self._recorder = recorder
        self._gate = gate or Continuous()
        self._queue: Iterator[Planned] = iter(workload.queue)
        self._open = {planned.id for planned in workload.queue}  # not answered yet
        self._num_to_come = len(workload.requests)
        self._seeds = {planned.id: seed for seed, planned in enumerate(workload.requests)}
        recorder.on_end(self._ended)

    def start(self) -> None:
        """Put the first sendings on the schedule; the rest follows by itself."""
        now = self._schedule.now()
        for _ in range(self._workload.num_clients):
            self._schedule.at(now, self._send_next)
        # All at once, so that what arrives at one time is there before anything comes of it.
        for when, planned in self._workload.arrivals:
            self._schedule.at(max(now, when), partial(self._arrive, planned, when))

    def _send_next(self, now: Seconds) -> None:
        planned = next(self._queue, None)
        if planned is not None:
            self._send(planned, now, now)

    def _arrive(self, planned: Planned, due: Seconds, now: Seconds) -> None:
        if self._open or not self._workload.stop_with_queue:
            # Over real time a step may keep the schedule busy past the time it was due at.
            self._send(planned, due, now)
            return
        self._num_to_come -= 1
        if not self._num_to_come:
            self._gate.close()
            self._let_in(now)

    def _send(self, planned: Planned, due: Seconds, now: Seconds) -> None:
        self._recorder.sent(planned, due)
        self._num_to_come -= 1
        self._gate.arrive(planned, now)
        if not self._num_to_come:
            self._gate.close()
        self._let_in(now)

    def _let_in(self, now: Seconds) -> None:
        for planned in self._gate.take(now):
            self._replica.submit(planned.request(self._seeds[planned.id]))
        due = self._gate.due()
        if due is not None:
            self._schedule.at(max(due, now), self._let_in)

    def _ended(self, request_id: str, now: Seconds) -> None:
        self._gate.ended(now)
        if request_id in self._open:
            self._open.discard(request_id)
            self._schedule.at(Seconds(now + self._workload.think), self._send_next)
        self._let_in(now)
