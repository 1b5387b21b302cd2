"""One try of a request at one server: send it, and read its answer within its times."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from headway.core.base.clock import Clock
from headway.core.base.errors import HeadwayError, UpstreamBroken, UpstreamTimeout
from headway.core.base.units import Seconds
from headway.core.messages.path import Finished, Tokens, Usage
from headway.service.upstream.answers import Shown, StreamedAnswer, whole_answer
from headway.service.upstream.failures import Refusal, refusal_of
from headway.service.upstream.http1 import Reply
from headway.service.upstream.replica import Lease
from headway.service.upstream.settings import UpstreamSettings
from headway.service.upstream.sse_reader import SseReader

BYTES_PER_TOKEN = 4
MAX_REFUSAL_BYTES = 256 * 1024
RETRY_AFTER = Seconds(1.0)
OK = 200


class Refused(Exception):
    """The server answered with another status than 200."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error.message)
        self.refusal = refusal


class Attempt:
    """Used once; close it, whatever happens."""

    def __init__(
        self, lease: Lease, settings: UpstreamSettings, clock: Clock, shown: Shown
    ) -> None:
        self.lease = lease
        self.began = clock.now()
        self.first_at: Seconds | None = None  # when the first event came
        self.has_begun = False  # something of its answer went to the client
        self._settings = settings
        self._clock = clock
        self._shown = shown
        self._reply: Reply | None = None
        self._answer: StreamedAnswer | None = None
        self._request_id = ""

    async def whole(
        self, request_id: str, head: str, body: bytes, prompt_bytes: int
    ) -> tuple[bytes, Finished]:
        """An answer that is not streamed; raises Refused and UpstreamError."""
        async with self._within(None, "its answer"):
            reply = await self._sent(head, body)
            data = await reply.whole(self._settings.max_answer_bytes)

        def estimate(text_bytes: int) -> Usage:
            return Usage(
                prompt_tokens=max(1, prompt_bytes // BYTES_PER_TOKEN),
                completion_tokens=text_bytes // BYTES_PER_TOKEN,
                is_estimated=True,
            )

        out, ended = whole_answer(data, self._shown, estimate)
        return out, Finished(request_id=request_id, reason=ended.reason, usage=ended.usage)

    async def events(
        self, request_id: str, head: str, body: bytes, prompt_tokens: int
    ) -> AsyncGenerator[tuple[bytes, list[Tokens]]]:
        """What each piece of a streamed answer brings, until its end; raises the same."""
        self._request_id = request_id
        answer = self._answer = StreamedAnswer(self._shown, request_id, prompt_tokens)
        reader = SseReader()
        limits = self._settings.timeouts
        async with self._within(limits.first_token, "its first token"):
            reply = await self._sent(head, body)
            _check_stream(reply)
            events, is_end = await _next(reply, reader)
        while True:
            self.first_at = self._clock.now() if self.first_at is None else self.first_at
            for taken in _taken(answer, events, self._clock.now()):
                self.has_begun = self.has_begun or bool(taken[0])
                yield taken
            if answer.is_done or is_end:
                return
            try:
                async with asyncio.timeout(limits.between_chunks):
                    events, is_end = await _next(reply, reader)
            except TimeoutError:
                raise _late("the next part of its answer") from None

    def last(self, created: int) -> tuple[bytes, Finished]:
        """The end of a streamed answer; raises UpstreamBroken where it came too early."""
        assert self._answer is not None, "nothing was streamed"
        data, ended = self._answer.last(created)
        return data, Finished(request_id=self._request_id, reason=ended.reason, usage=ended.usage)

    def close(self) -> None:
        """The connection is used again if all was read, else cut."""
        if self._reply is not None:
            is_done = self._answer is not None and self._answer.is_done
            self._reply.close(ends_soon=is_done)

    async def _sent(self, head: str, body: bytes) -> Reply:
        """The answer's beginning, if it is a good one; raises Refused."""
        replica = self.lease.replica
        reply = await replica.client.send(head, body, self._settings.timeouts.connect)
        self._reply = reply
        if reply.status != OK:
            told = await _or_nothing(reply)
            own, shown = self._settings.upstream_model, self._shown.model
            hidden = () if own == shown else ((own, shown),)
            raise Refused(refusal_of(reply.status, reply.headers, told, hidden))
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamBroken("the upstream compresses its answers unasked", RETRY_AFTER)
        return reply

    @contextlib.asynccontextmanager
    async def _within(self, limit: float | None, what: str) -> AsyncIterator[None]:
        """Raises UpstreamTimeout when it takes too long, or the replica goes away meanwhile."""
        try:
            async with asyncio.timeout(limit) as timer:
                self.lease.watch(timer)
                try:
                    yield
                finally:
                    self.lease.watch(None)
        except TimeoutError:
            raise _late(what) from None


def _late(what: str) -> UpstreamTimeout:
    problem = f"the server behind this model did not send {what} in time"
    return UpstreamTimeout(problem, RETRY_AFTER)


def _check_stream(reply: Reply) -> None:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        raise UpstreamBroken("the server behind this model did not stream its answer", RETRY_AFTER)


async def _next(reply: Reply, reader: SseReader) -> tuple[list[bytes], bool]:
    """The next events, and whether the answer's bytes have ended; comments are no events."""
    while True:
        piece = await reply.read()
        if not piece:
            return reader.finish(), True
        events = reader.feed(piece)
        if events:
            return events, False


def _taken(
    answer: StreamedAnswer, events: list[bytes], now: Seconds
) -> Iterator[tuple[bytes, list[Tokens]]]:
    """Several events of one piece as one write; a failing one leaves those before it."""
    out, gained = b"", list[Tokens]()
    try:
        for data in events:
            text, tokens = answer.take(data, now)
            out += text
            gained += tokens
            if answer.is_done:
                break
    except HeadwayError:
        if out:
            yield out, gained
        raise
    if out or gained:
        yield out, gained


async def _or_nothing(reply: Reply) -> bytes:
    try:
        return await reply.whole(MAX_REFUSAL_BYTES)
    except UpstreamBroken:
        return b""
