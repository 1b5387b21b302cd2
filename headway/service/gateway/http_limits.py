"""Limits on connections and request headers, which act before any of our code sees a request.

uvicorn's own protocol puts no bound on the number, the size or the time of headers.
"""

import asyncio
import uuid
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from headway.service.gateway.direct import DirectWriter
from headway.service.gateway.http import DIRECT, TRANSPORT
from headway.service.gateway.settings import GatewaySettings

FRAMING_FACTOR = 8  # bytes of chunk sizes and the like allowed for each byte of body
LINGER_S = 1.0  # for which a refused client may go on sending, to read its answer
LINGER_BYTES = 16 * 1024 * 1024
REASONS = {
    400: ("This is not a well-formed HTTP/1.1 request.", "bad_request"),
    408: ("The request's header did not arrive in time.", "request_timeout"),
    431: ("The request's header is over the limit in lines or bytes.", "header_too_large"),
    503: ("This server has as many open connections as it takes.", "too_many_connections"),
}


class HeaderTooLarge(Exception):
    """Raised inside the parser to stop it; never leaves this module."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with bounded headers, framing, time and connections."""

    def __init__(
        self,
        limits: GatewaySettings,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits
        self.head_timer: asyncio.TimerHandle | None = None
        self.head_count = 0
        self.head_bytes = 0
        self.other_bytes = 0  # received since the message began and not part of its body
        self.refusal = 400
        self.linger: asyncio.TimerHandle | None = None
        self.unread_timer: asyncio.TimerHandle | None = None

    # uvicorn narrows the argument of asyncio.Protocol in the same way.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503)
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        self._head_is_here()
        for timer in (self.linger, self.unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse what is over a limit."""
        self.other_bytes += len(data)
        if self.linger is not None and self.other_bytes > LINGER_BYTES:
            self.transport.abort()
        if self.linger is not None or self.transport.is_closing():
            return
        super().data_received(data)
        if self.other_bytes > self.limits.max_header_bytes and self.linger is None:
            self._refuse(431)

    def on_message_begin(self) -> None:
        """A request begins: its header has limited size and time from here."""
        self.head_count = 0
        self.head_bytes = 0
        self.other_bytes = 0
        self._expect_head()
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[TRANSPORT] = self.transport

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url), lines=0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header line; trailers come here too."""
        self._count(len(name) + len(value), lines=1)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The header is whole; the body has limits of its own."""
        self._head_is_here()
        super().on_headers_complete()
        cast(dict[str, Any], self.scope)[DIRECT] = DirectWriter(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Body bytes pay for some framing."""
        self.other_bytes = max(0, self.other_bytes - len(body) * FRAMING_FACTOR)
        super().on_body(body)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write: from now on it must read something."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """It has read nearly all."""
        if self.unread_timer is not None:
            self.unread_timer.cancel()
            self.unread_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for whatever the parser could not read."""
        self._refuse(self.refusal)

    def _count(self, num_bytes: int, lines: int) -> None:
        self.head_count += lines
        self.head_bytes += num_bytes
        if (
            self.head_count > self.limits.max_header_count
            or self.head_bytes > self.limits.max_header_bytes
        ):
            self.refusal = 431
            raise HeaderTooLarge

    def _expect_head(self) -> None:
        if self.head_timer is None:
            self.head_timer = self.loop.call_later(self.limits.header_timeout, self._head_is_late)

    def _head_is_here(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _head_is_late(self) -> None:
        self.head_timer = None
        if not self.transport.is_closing():
            self._refuse(408)

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self.unread_timer = self.loop.call_later(
            self.limits.write_timeout, self._check_reading, unread
        )

    def _check_reading(self, unread_before: int) -> None:
        """Drop a connection of which nothing was read; closing would wait for that for ever.

        What was written in between counts against the client, but it is no more than one
        write: the next one waits.
        """
        if self.transport.get_write_buffer_size() < unread_before:
            self._expect_reading()
        else:
            self.transport.abort()

    def _refuse(self, status: int) -> None:
        """Answer in OpenAI's error shape and close; just close inside another answer."""
        self._head_is_here()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_busy = cycle is not None and not cycle.response_complete
        if not (is_busy and cycle.response_started):
            self.transport.write(_refusal(status))
        if is_busy or status == 503:
            self.transport.close()
            return
        # Closing at once would reset the connection under a client that is still sending,
        # and take the answer with it: what still comes is thrown away for a moment.
        self.transport.write_eof()
        self.linger = self.loop.call_later(LINGER_S, self.transport.close)


def _refusal(status: int) -> bytes:
    message, code = REASONS[status]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = (
        f'{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}}}'
    ).encode("ascii")
    retry = "retry-after: 1\r\n" if status == 503 else ""
    head = (
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-request-id: {uuid.uuid4().hex}\r\n{retry}connection: close\r\n\r\n"
    ).encode("ascii")
    return STATUS_LINE[status] + head + body
