"""One try of a request at one server: send it, and read its answer within its times."""

import asyncio

from headway.core.base.clock import Clock
from headway.core.base.errors import UpstreamBroken
from headway.core.base.units import Seconds
from headway.core.messages.path import Finished, Usage
from headway.service.upstream.answers import Shown, StreamedAnswer, whole_answer
from headway.service.upstream.ends import Outlet, Sent, Witness
from headway.service.upstream.failures import Refusal, refusal_of
from headway.service.upstream.http1 import Reply
from headway.service.upstream.replica import Lease
from headway.service.upstream.settings import UpstreamSettings
from headway.service.upstream.streaming import Streaming, late

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
        self, sent: Sent, lease: Lease, settings: UpstreamSettings, clock: Clock, shown: Shown
    ) -> None:
        self.lease = lease
        self.began = clock.now()
        self.first_at: Seconds | None = None  # when the first event came
        self._sent = sent
        self._settings = settings
        self._clock = clock
        self._shown = shown
        self._reply: Reply | None = None
        self._answer: StreamedAnswer | None = None
        self._streaming: Streaming | None = None

    @property
    def has_begun(self) -> bool:
        """Whether something of its answer went to the client."""
        return self._streaming is not None and self._streaming.has_begun

    async def whole(self, head: str, body: bytes) -> tuple[bytes, Finished]:
        """An answer that is not streamed; raises Refused and UpstreamError."""
        try:
            async with asyncio.timeout(None) as timer:  # its replica may go away meanwhile
                self.lease.watch(timer)
                reply = await self._asked(head, body)
                data = await reply.whole(self._settings.max_answer_bytes)
        except TimeoutError:
            raise late("its answer") from None
        finally:
            self.lease.watch(None)

        def estimate(text_bytes: int) -> Usage:
            return Usage(
                prompt_tokens=self._sent.prompt_tokens,
                completion_tokens=text_bytes // BYTES_PER_TOKEN,
                is_estimated=True,
            )

        out, ended = whole_answer(data, self._shown, estimate)
        return out, Finished(request_id=self._sent.id, reason=ended.reason, usage=ended.usage)

    async def stream(self, head: str, body: bytes, outlet: Outlet, witness: Witness) -> None:
        """A streamed answer to the outlet as it comes, up to its `last`; raises the same."""
        limits = self._settings.timeouts
        try:
            async with asyncio.timeout(limits.first_token) as timer:
                self.lease.watch(timer)
                reply = await self._asked(head, body)
                _check_stream(reply)
                answer = self._answer = StreamedAnswer(self._shown, self._sent.prompt_tokens)
                streaming = Streaming(self._sent.id, answer, outlet, witness, self._clock)
                self._streaming = streaming
                await streaming.begin(reply)
        except TimeoutError:
            if not self.has_begun:  # else it came in the turn in which its time was over
                raise late("its first token") from None
        finally:
            self.lease.watch(None)
        self.first_at = self._clock.now()
        assert self._reply is not None, "it has begun"
        assert self._streaming is not None, "it has begun"
        await self._streaming.run(self._reply, limits.between_chunks)

    def last(self, created: int) -> tuple[bytes, Finished]:
        """The end of a streamed answer; raises UpstreamBroken where it came too early."""
        assert self._answer is not None, "nothing was streamed"
        data, ended = self._answer.last(created)
        return data, Finished(request_id=self._sent.id, reason=ended.reason, usage=ended.usage)

    def close(self) -> None:
        """The connection is used again if all was read, else cut."""
        if self._reply is not None:
            is_done = self._answer is not None and self._answer.is_done
            self._reply.close(ends_soon=is_done)

    async def _asked(self, head: str, body: bytes) -> Reply:
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


def _check_stream(reply: Reply) -> None:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        raise UpstreamBroken("the server behind this model did not stream its answer", RETRY_AFTER)


async def _or_nothing(reply: Reply) -> bytes:
    try:
        return await reply.whole(MAX_REFUSAL_BYTES)
    except UpstreamBroken:
        return b""
