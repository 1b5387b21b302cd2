"""What waits for one reader: events of one request, merged while nobody reads."""

import asyncio
from collections.abc import Iterable

from headway.core.base.errors import ReplicaLost
from headway.core.base.units import Seconds
from headway.core.messages.path import (
    Event,
    Finished,
    FinishReason,
    Started,
    TokenLogprob,
    Tokens,
)


class _Gathered:
    """Unread tokens of one choice; adding to it costs the same however much is unread."""

    __slots__ = ("at", "finish_reason", "logprobs", "prompt_logprobs", "stop", "text", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self.at = Seconds(0.0)
        self.finish_reason: FinishReason | None = None
        self.stop: str | int | None = None

    def add(self, event: Tokens) -> None:
        """Append what the choice gained."""
        self.token_ids += event.token_ids
        self.text.append(event.text)
        self.logprobs += event.logprobs
        self.prompt_logprobs += event.prompt_logprobs
        self.at = event.at
        self.finish_reason = event.finish_reason
        self.stop = event.stop_reason

    def event(self, request_id: str, choice: int) -> Tokens:
        """All of it as one event, at the time of its last token."""
        return Tokens(
            request_id=request_id,
            choice=choice,
            token_ids=tuple(self.token_ids),
            text="".join(self.text),
            at=self.at,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop,
        )


class RequestMailbox:
    """The mailbox of `transport.Mailbox`; writers and the one reader share an event loop.

    It holds at most Started, one Tokens a choice and the end. What arrived before a replica
    died is still read first; then the failure is raised.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._started: Started | None = None
        self._unread: dict[int, Tokens | _Gathered] = {}  # choice -> tokens, oldest first
        self._end: Finished | ReplicaLost | None = None
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; merges it when the reader has not taken the choice's last one."""
        assert self._end is None, f"{type(event).__name__} after the end of {self.request_id}"
        match event:
            case Tokens():
                self._merge(event)
            case Started():
                self._started = event
            case Finished():
                self._end = event
        self._wake.set()

    def fail(self, error: ReplicaLost) -> None:
        """End the mailbox by an error; does nothing when it has its end already."""
        if self._end is None:
            self._end = error
            self._wake.set()

    async def get(self) -> Event:
        """The next event; `Finished` is the last. Raises ReplicaLost when the replica died."""
        while True:
            if (event := self._take()) is not None:
                return event
            self._wake.clear()
            await self._wake.wait()

    def _merge(self, event: Tokens) -> None:
        waiting = self._unread.get(event.choice)
        if waiting is None:  # the usual case, a reader that keeps up, costs nothing
            self._unread[event.choice] = event
            return
        if isinstance(waiting, Tokens):
            first, waiting = waiting, _Gathered()
            waiting.add(first)
            self._unread[event.choice] = waiting
        waiting.add(event)

    def _take(self) -> Event | None:
        if self._started is not None:
            started, self._started = self._started, None
            return started
        if self._unread:
            choice = next(iter(self._unread))
            waiting = self._unread.pop(choice)
            return (
                waiting if isinstance(waiting, Tokens) else waiting.event(self.request_id, choice)
            )
        if isinstance(self._end, ReplicaLost):
            # A new instance each time: a raised one gathers the tracebacks of its readers.
            raise ReplicaLost(self._end.message, self._end.retry_after_s)
        return self._end


class Mailboxes:
    """All open mailboxes of one replica, by request id."""

    def __init__(self) -> None:
        self._open: dict[str, RequestMailbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str) -> RequestMailbox:
        """A new mailbox; the id must not be in use."""
        assert request_id not in self._open, f"request id {request_id} is in use"
        mailbox = self._open[request_id] = RequestMailbox(request_id)
        return mailbox

    def discard(self, request_id: str) -> None:
        """Forget a mailbox whose request was never sent."""
        self._open.pop(request_id, None)

    def fail(self, request_id: str, message: str, retry_after_s: Seconds) -> None:
        """End one mailbox with ReplicaLost, and forget it; harmless when it is not open."""
        mailbox = self._open.pop(request_id, None)
        if mailbox is not None:
            mailbox.fail(ReplicaLost(message, retry_after_s))

    def deliver(self, events: Iterable[Event]) -> None:
        """Put each event into its mailbox; those of ended or unknown requests are dropped."""
        for event in events:
            mailbox = self._open.get(event.request_id)
            if mailbox is None:
                continue
            mailbox.put(event)
            if isinstance(event, Finished):
                del self._open[event.request_id]

    def fail_all(self, message: str, retry_after_s: Seconds) -> None:
        """End every open mailbox with ReplicaLost, and forget it."""
        error = ReplicaLost(message, retry_after_s)
        for mailbox in self._open.values():
            mailbox.fail(error)
        self._open.clear()
