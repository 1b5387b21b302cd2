"""The mailbox of a request that outlives its replica: no gap, no repeat, one end."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from headway.core.base.errors import ReplicaLost
from headway.core.base.units import Seconds
from headway.core.messages.path import (
    Emitted,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Started,
    Tokens,
    Usage,
)
from headway.core.route.retry import Tries
from headway.core.route.router import REFUSALS
from headway.service.wire.transport import Mailbox


class Attempt(NamedTuple):
    """A request at one replica."""

    replica: str
    id: str  # by which that replica knows it
    box: Mailbox
    reason: str = ""  # why that replica: "load", or "prefix"


class Elsewhere(Protocol):
    """Who sends a request to another replica."""

    async def go_on(self, lost: "LastingMailbox", error: ReplicaLost) -> Attempt:
        """Its replica has gone; waits until another one takes it, else raises ReplicaLost."""
        ...

    def go_elsewhere(self, refused: "LastingMailbox") -> Attempt | None:
        """Its replica had no room; None when no other can take it now."""
        ...

    def closed(self, request_id: str) -> None:
        """Its end was read, or it has none."""
        ...


class _Times:
    """When things happened to a request, by one clock however many replicas it has seen."""

    def __init__(self, now: Callable[[], Seconds]) -> None:
        self._now = now
        self._began = now()
        self._started: Seconds | None = None
        self._first: Seconds | None = None

    def saw(self, event: Started | Tokens) -> None:
        """Its reader gets this."""
        if self._started is None:
            self._started = self._now()
        if self._first is None and isinstance(event, Tokens):
            self._first = self._now()

    def over_all(self, usage: Usage) -> Usage:
        """The same with the times from its arrival to now; the last replica knows its own only."""
        now = self._now()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        return msgspec.structs.replace(
            usage, queue_s=started - self._began, prefill_s=first - started, decode_s=now - first
        )


class LastingMailbox:
    """Reads the mailbox at one replica after the other.

    What the reader was given is all that counts as sent: the rest of the answer begins there. Once
    it goes on elsewhere, the events of its replicas are told apart by their ids, so that nothing
    late of a replica that was given up reaches the reader.
    """

    def __init__(
        self,
        request: EngineRequest,
        first: Attempt,
        tries: Tries,
        elsewhere: Elsewhere,
        now: Callable[[], Seconds],
    ) -> None:
        """now  of the clock that its times go by, if it moves"""
        self.request = request
        self.attempt = first
        self.tries = tries
        self.is_cancelled = False
        self.refused_by: set[str] = set()
        self._elsewhere = elsewhere
        self._tokens: list[list[int]] = [[] for _ in range(request.num_choices)]
        self._reasons: list[FinishReason | None] = [None] * request.num_choices
        self._started: Started | None = None
        self._times = _Times(now)

    @property
    def replica(self) -> str:
        """The one that works on it, or did last."""
        return self.attempt.replica

    @property
    def reason(self) -> str:
        """Why that one was chosen: "load" or "prefix"."""
        return self.attempt.reason

    @property
    def failovers(self) -> int:
        """Times that it went on at another replica."""
        return self.tries.count

    @property
    def has_begun(self) -> bool:
        """True once the reader has tokens."""
        return any(self._tokens)

    def rest(self, attempt_id: str) -> EngineRequest:
        """The request as another replica takes it, from the tokens on that the reader has.

        A promise of the first token holds only until then.
        """
        if not self.has_begun:
            return msgspec.structs.replace(self.request, id=attempt_id)
        emitted = tuple(
            Emitted(token_ids=tuple(tokens), finish_reason=reason)
            for tokens, reason in zip(self._tokens, self._reasons, strict=True)
        )
        return msgspec.structs.replace(
            self.request, id=attempt_id, emitted=emitted, first_token_budget_s=None
        )

    async def get(self) -> Event:
        """The next event; `Finished` is the last. Raises ReplicaLost when nobody can go on."""
        while True:
            try:
                event = await self.attempt.box.get()
            except ReplicaLost as error:
                if self.is_cancelled:
                    return self._cancelled()
                self.attempt = await self._elsewhere.go_on(self, error)
                continue
            if isinstance(event, Finished):
                if self._is_refusal(event) and self._refused():
                    continue
                return self._end(event)
            if (passed := self._take(event)) is not None:
                return passed

    def _take(self, event: Started | Tokens) -> Event | None:
        """Note what the reader is given now; None: it has that already."""
        self._times.saw(event)
        if isinstance(event, Started):
            if self._started is not None:
                return None
            self._started = event
        else:
            self._tokens[event.choice] += event.token_ids
            self._reasons[event.choice] = event.finish_reason
            self.tries.gained()
        if event.request_id == self.request.id:
            return event
        return msgspec.structs.replace(event, request_id=self.request.id)

    def _end(self, event: Finished) -> Finished:
        self._elsewhere.closed(self.request.id)
        usage = event.usage
        if self.failovers:
            usage = self._times.over_all(usage)
        if self._started is not None and self.failovers:
            usage = msgspec.structs.replace(usage, cached_tokens=self._started.cached_tokens)
        return msgspec.structs.replace(
            event,
            request_id=self.request.id,
            usage=usage,
            replica=self.replica,
            failovers=self.failovers,
        )

    def _is_refusal(self, event: Finished) -> bool:
        is_early = not self.has_begun and not self.is_cancelled
        return is_early and event.reason is FinishReason.ERROR and event.error_code in REFUSALS

    def _refused(self) -> bool:
        """Whether another replica has taken it instead."""
        self.refused_by.add(self.replica)
        attempt = self._elsewhere.go_elsewhere(self)
        if attempt is None:
            return False
        self.attempt = attempt
        return True

    def _cancelled(self) -> Finished:
        """Nobody reads it any more, and its replica is lost: nothing of it is left."""
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=sum(map(len, self._tokens)),
            cached_tokens=self._started.cached_tokens if self._started is not None else 0,
        )
        return self._end(
            Finished(request_id=self.request.id, reason=FinishReason.CANCELLED, usage=usage)
        )
