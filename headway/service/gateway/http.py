"""One HTTP exchange over ASGI: a request read within limits, an answer written within limits."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qs

from headway.core.base.errors import BodyTooLarge, SlowBody, UnsupportedMedia

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

NO_CONTENT = 204
MAX_REQUEST_ID = 128  # characters of a client's X-Request-Id that are kept
MAX_DISCARD_BYTES = 64 * 1024 * 1024  # of a refused body, so that the client reads the answer
MAX_DISCARD_S = 5.0
MAX_PAUSE_S = 0.5  # in what is thrown away; a client that sends no more has read the answer
NOT_IN_A_HEADER = re.compile(r"[^\x20-\x7e]")
NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:/+=@-]")
JSON = b"application/json"
# Keys of the scope for the connection, and for what writes an answer to it at once.
TRANSPORT, DIRECT = "headway.transport", "headway.direct"


class Direct(Protocol):
    """What writes an answer past ASGI; see `direct.DirectWriter`."""

    def take_body(self) -> bytes | None:
        """The request's whole body, once; None: it is not all here, or has to be waited for."""
        ...

    def begin(self, headers: Iterable[Header], data: bytes) -> bool:
        """Write the header of a 200 and the first part of its body."""
        ...

    def push(self, data: bytes) -> bool:
        """Write a further part."""
        ...


class ClientGone(Exception):
    """The client closed, reset or stopped reading; nobody is left to be answered."""


class Exchange:
    """One request and its answer; used by the task that serves it and its helpers."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.id = os.urandom(16).hex()  # keys everything inside; unique whatever the client sends
        self._scope = scope
        self._receive = receive
        self._send = send
        # Taken out: it knows the answer's cycle, and that the scope.
        self._direct: Direct | None = scope.pop(DIRECT, None)
        self._first: Mapping[bytes, bytes] = dict(reversed(scope["headers"]))  # of each name
        self._body_is_read = False
        self._added: dict[str, Header] = {}
        self.is_started = False
        sent = NOT_IN_AN_ID.sub("", self.header("x-request-id") or "")[:MAX_REQUEST_ID]
        self.shown_id = sent or self.id

    @property
    def address(self) -> str:
        """Of the other end of the connection."""
        client: tuple[str, int] | None = self._scope.get("client")
        return "" if client is None else client[0]

    def header(self, name: str) -> str | None:
        """The first header of that name (lower case)."""
        value = self._first.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def headers(self, name: str) -> list[str]:
        """All headers of that name (lower case), in order."""
        key = name.encode("latin-1")
        if key not in self._first:
            return []
        all_: Sequence[Header] = self._scope["headers"]
        return [value.decode("latin-1") for each, value in all_ if each == key]

    def query(self, name: str) -> str | None:
        """The first non-empty value of a query parameter."""
        query = self._scope["query_string"].decode("latin-1")
        if not query:
            return None
        values = parse_qs(query, max_num_fields=None).get(name)
        return values[0] if values else None

    @property
    def query_names(self) -> tuple[str, ...]:
        """Of all query parameters, those without a value too."""
        query = self._scope["query_string"].decode("latin-1")
        return tuple(parse_qs(query, keep_blank_values=True, max_num_fields=None))

    async def body(self, max_bytes: int, timeout: float) -> bytes:
        """The whole body.

        Raises BodyTooLarge before it holds more than `max_bytes`, SlowBody, UnsupportedMedia
        for a compressed one, ClientGone.
        """
        coding = (self.header("content-encoding") or "identity").strip().lower()
        if coding not in {"identity", ""}:
            raise UnsupportedMedia(
                "The body is compressed, which is not read here. Send it without Content-Encoding."
            )
        declared = self.header("content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
            raise _too_large(max_bytes)
        whole = None if self._direct is None else self._direct.take_body()
        if whole is not None:  # nothing is waited for
            if len(whole) > max_bytes:
                raise _too_large(max_bytes)
            self._body_is_read = True
            return whole
        try:
            async with asyncio.timeout(timeout):
                return await self._read(max_bytes)
        except TimeoutError:
            raise SlowBody(f"The body did not arrive within {timeout:g} seconds.") from None

    async def _read(self, max_bytes: int) -> bytes:
        parts = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts += message.get("body", b"")
            if len(parts) > max_bytes:
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                self._body_is_read = True
                return bytes(parts)

    def num_unsent(self) -> int:
        """Bytes that were written and that the kernel has not taken yet."""
        transport: asyncio.WriteTransport | None = self._scope.get(TRANSPORT)
        return 0 if transport is None else transport.get_write_buffer_size()

    async def until_gone(self) -> None:
        """Return when the client has closed its side, or the answer is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def add_header(self, name: str, value: str) -> None:
        """Have the answer carry this header, in place of one of the same name that was added.

        Without effect once the answer has begun. What ASCII cannot carry is escaped.
        """
        shown = NOT_IN_A_HEADER.sub("?", value.encode("ascii", "backslashreplace").decode("ascii"))
        self._added[name] = (name.encode("ascii"), shown.encode("ascii"))

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send the status line and the header, X-Request-Id and what was added with it."""
        all_ = self._with_added(headers)
        await self._write({"type": "http.response.start", "status": status, "headers": all_})
        self.is_started = True  # only now: who is cancelled while it waits has sent nothing

    def begin(self, headers: Iterable[Header], data: bytes) -> bool:
        """Start a streamed 200 with the first part of its body at once; False: use `start`."""
        if self._direct is None or not self._direct.begin(self._with_added(headers), data):
            return False
        self.is_started = True
        return True

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of the body whole; waits while what was sent before is not read."""
        await self._write({"type": "http.response.body", "body": data, "more_body": not is_last})

    def push(self, data: bytes) -> bool:
        """Send a part of the body at once; False: it has to wait, or the client is gone."""
        return self._direct is not None and self._direct.push(data)

    async def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Iterable[Header] = ()
    ) -> None:
        """Send a whole answer.

        When the request's body was not read, it is thrown away for a while after the
        answer, since closing at once would reset the connection under a client that is
        still sending, and the answer with it.
        """
        unread = self._has_body and not self._body_is_read
        about = [(b"connection", b"close")] if unread else []
        if status != NO_CONTENT:  # which may have neither
            length = str(len(body)).encode("ascii")
            about = [(b"content-type", content_type), (b"content-length", length), *about]
        await self.start(status, [*about, *headers])
        if unread:
            await self.write(body)
            await self._discard()
            await self.write(b"", is_last=True)
        else:
            await self.write(body, is_last=True)

    def _with_added(self, headers: Iterable[Header]) -> list[Header]:
        named = (b"x-request-id", self.shown_id.encode("ascii"))
        return [*headers, *self._added.values(), named]

    @property
    def _has_body(self) -> bool:
        """Whether the request has a body, as far as its header tells."""
        length = self.header("content-length") or "0"
        return length.strip("0") != "" or self.header("transfer-encoding") is not None

    async def _discard(self) -> None:
        left = MAX_DISCARD_BYTES
        try:
            async with asyncio.timeout(MAX_DISCARD_S):
                while left > 0:
                    async with asyncio.timeout(MAX_PAUSE_S):
                        message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
        except TimeoutError:
            return

    async def _write(self, message: Message) -> None:
        transport: asyncio.WriteTransport | None = self._scope.get(TRANSPORT)
        if transport is not None and transport.is_closing():
            raise ClientGone  # what is written now is thrown away, and must not count as sent
        try:
            await self._send(message)  # the connection itself ends when nobody reads it
        except OSError:
            raise ClientGone from None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is over the limit of {max_bytes} bytes. Send a shorter one.")
