"""A streamed answer: nothing is sent until there is something to say, and no long silence."""

import asyncio

from headway.core.base.clock import Clock
from headway.core.base.errors import HeadwayError
from headway.service.gateway.http import Exchange, Header
from headway.service.openai import sse
from headway.service.openai.errors import to_event

HEADERS: tuple[Header, ...] = tuple(
    (name.encode("ascii"), value.encode("ascii")) for name, value in sse.HEADERS
)


class SseStream:
    """The events of one answer. The header leaves with the first bytes, whatever they are."""

    def __init__(self, exchange: Exchange, clock: Clock, keepalive_interval: float) -> None:
        self._exchange = exchange
        self._clock = clock
        self._interval = keepalive_interval
        self._last_sent = clock.now()
        self.has_begun = False
        self._turn = asyncio.Lock()  # a keepalive never comes between header and event

    async def send(self, events: bytes, *, is_last: bool = False) -> None:
        """Send whole events; raises ClientGone."""
        async with self._turn:
            if not self.has_begun:
                await self._exchange.start(200, HEADERS)
                self.has_begun = True
            await self._exchange.write(events, is_last=is_last)
            self._last_sent = self._clock.now()

    def push(self, events: bytes) -> bool:
        """Send whole events in this turn of the loop; False where that cannot be: use `send`."""
        if self._turn.locked():
            return False
        exchange = self._exchange
        is_sent = exchange.push(events) if self.has_begun else exchange.begin(HEADERS, events)
        if is_sent:
            self.has_begun = True
            self._last_sent = self._clock.now()
        return is_sent

    async def fail(self, error: HeadwayError) -> None:
        """End a stream that has begun: one error event and no [DONE]."""
        await self.send(to_event(error), is_last=True)

    async def keep_alive(self) -> None:
        """Send a comment after each idle interval; never returns by itself."""
        if self._interval <= 0:
            await asyncio.Event().wait()
        while True:
            idle = self._clock.now() - self._last_sent
            if idle < self._interval:
                await asyncio.sleep(self._interval - idle)
            else:
                await self.send(sse.KEEPALIVE)
