"""A streamed answer on its way, from an upstream's connection to a client's."""

import asyncio
from typing import Protocol

from headway.core.base.clock import Clock
from headway.core.base.errors import HeadwayError, UpstreamBroken, UpstreamTimeout
from headway.core.base.units import Seconds
from headway.service.upstream.answers import StreamedAnswer
from headway.service.upstream.body import Take
from headway.service.upstream.ends import Outlet, Witness
from headway.service.upstream.likeness import Gain
from headway.service.upstream.sse_reader import SseReader

SLACK = 1 / 8  # of the time-out between two events: by so much it may come late
RETRY_AFTER = Seconds(1.0)


def late(what: str) -> UpstreamTimeout:
    """A server took too long with that."""
    problem = f"the server behind this model did not send {what} in time"
    return UpstreamTimeout(problem, RETRY_AFTER)


class Replied(Protocol):
    """A body that comes; `http1.Reply` is one."""

    async def read(self) -> bytes:
        """What has come since the last call; b"" at its end. Raises UpstreamBroken."""
        ...

    async def pump(self, take: Take) -> bool:
        """See `Body.pump`."""
        ...


class _Patience:
    """Puts a time-out off at every event; moving the timer each time would cost as much as that."""

    def __init__(self, limit: float | None, timer: asyncio.Timeout) -> None:
        self._limit = limit
        self._timer = timer
        self._moved_until = 0.0  # the timer need not be moved before

    def heard(self, now: Seconds) -> None:
        """An event came."""
        if self._limit is not None and now >= self._moved_until:
            self._moved_until = now + self._limit * SLACK
            later = self._limit * (1.0 + SLACK)
            self._timer.reschedule(asyncio.get_running_loop().time() + later)


class Streaming:
    """One try's answer, used once: `begin`, then `run`.

    A piece that comes while its client keeps up goes through in one turn of the event loop: read,
    changed, counted and written in one call, and no task wakes for it. `run` itself goes on where
    something has to wait, fails or ends.
    """

    def __init__(
        self,
        request_id: str,
        answer: StreamedAnswer,
        outlet: Outlet,
        witness: Witness,
        clock: Clock,
    ) -> None:
        self._id = request_id
        self._answer = answer
        self._outlet = outlet
        self._gained = witness.gained
        self._clock = clock
        self._reader = SseReader()
        self._unsent = b""  # for a client that could not take it at once
        self._failure: HeadwayError | None = None
        self._is_end = False  # of the upstream's bytes
        self._patience: _Patience | None = None
        self.has_begun = False  # something went to the client

    async def begin(self, reply: Replied) -> None:
        """Wait for the first events; raises UpstreamBroken. Comments are no events."""
        await self._pump(reply)

    async def run(self, reply: Replied, between_s: float | None) -> None:
        """All of it to the client; raises UpstreamError, and what an error event says.

        between_s  longest time without an event; None: any
        """
        while True:
            if self._unsent:
                data, self._unsent, self.has_begun = self._unsent, b"", True
                await self._outlet.stream(data, self._answer.num_tokens, is_last=False)
            if self._failure is not None:
                raise self._failure
            if self._answer.is_done or self._is_end:
                return
            try:
                async with asyncio.timeout(between_s) as timer:
                    self._patience = _Patience(between_s, timer)
                    await self._pump(reply)
            except TimeoutError:
                raise late("the next part of its answer") from None

    async def _pump(self, reply: Replied) -> None:
        """Hand on what comes until something has to wait, fails or ends."""
        if not await reply.pump(self._take):
            await reply.read()  # nothing: raises where it broke
            self._is_end = True
            self._unsent, gains = self._changed(self._reader.finish())
            self._count(gains, self._clock.now())

    def _take(self, piece: bytes) -> bool:
        """A piece has come; False where `run` has to go on, or `begin` has what it waits for."""
        try:
            events = self._reader.feed(piece)
        except UpstreamBroken as error:
            self._failure = error
            return False
        if not events:
            return True
        now, patience = self._clock.now(), self._patience
        data, gains = self._changed(events)
        is_pushed = not data or self._outlet.push(data, self._answer.num_tokens)
        self._count(gains, now)  # by now it is on its way
        if not is_pushed:
            self._unsent = data
            return False
        self.has_begun = self.has_begun or bool(data)
        if patience is None:
            return False
        patience.heard(now)
        return self._failure is None and not self._answer.is_done

    def _changed(self, events: list[bytes]) -> tuple[bytes, list[Gain]]:
        """What the client gets for them, and what they bring; a failing one leaves the others."""
        answer, out, gains = self._answer, b"", list[Gain]()
        try:
            for data in events:
                out += answer.take(data, gains)
                if answer.is_done:
                    break
        except HeadwayError as error:
            self._failure = error
        return out, gains

    def _count(self, gains: list[Gain], now: Seconds) -> None:
        for choice, num_tokens in gains:
            self._gained(self._id, choice, num_tokens, now)
