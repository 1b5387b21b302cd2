"""An HTTP/1.1 client for answers that stream: httptools on asyncio, connections used again.

It resolves what its settings say and nothing else: no proxies or credentials from the environment,
no redirects, no cookies, no decompression. What is cancelled is cut at once, which tells the
server that nobody waits any more.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import httptools

from headway.core.base.errors import UpstreamBroken, UpstreamTimeout
from headway.core.base.units import Seconds
from headway.service.upstream.body import Body, Take
from headway.service.upstream.settings import Endpoint, Tls

MAX_HEADER_BYTES = 64 * 1024
PAUSE_BYTES = 256 * 1024  # of an answer that were not read yet; the server then waits
END_S = 1.0  # for the last bytes of an answer that nobody reads any more
IDLE_S = 60.0  # after which a connection is not used again
RETRY_AFTER = Seconds(1.0)
FIRST_FINAL = 200  # lower statuses announce another one
OTHER_NAME = frozenset({62, 64})  # OpenSSL's codes: of a host's name, of an address
KEEP_ALIVE_HEADERS = "connection: keep-alive\r\n"


class NotConnected(UpstreamBroken):
    """No connection was made: the server has seen nothing of the request."""

    code = "upstream_unreachable"


class NotTrusted(NotConnected):
    """TLS ended before anything was sent; `advice` is for whoever may change the settings."""

    def __init__(self, error: ssl.SSLError) -> None:
        super().__init__(f"no connection to the upstream: {type(error).__name__}", RETRY_AFTER)
        self.advice = _advice(error)


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: Mapping[str, str]  # names in lower case; of several, the last


class Connection(asyncio.Protocol):
    """One connection, and the answer that is read from it. Its callbacks are httptools' own."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._head: asyncio.Future[Head] | None = None
        self._header_bytes = 0
        self._body = Body()
        self.has_read = False  # anything of the present answer
        self.idle_since = 0.0
        self.on_whole: Callable[[], None] | None = None  # nobody reads the rest; told at its end

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There it is."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        self.has_read = True
        body = self._body
        if body.is_whole:
            self._fail("it sent more than its answer")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switched to another protocol")
        except httptools.HttpParserError:
            self._fail("it sent what is not HTTP")
        body.told()
        if body.num_bytes > PAUSE_BYTES and self._transport is not None:
            self._transport.pause_reading()
        if self._body.is_whole and self.on_whole is not None:
            self.on_whole()

    def eof_received(self) -> bool:
        """Closed cleanly: the end of an answer that told no length, else of one that is cut."""
        head = self._head
        has_head = head is not None and head.done() and not head.cancelled()
        if has_head and self._body.lost is None and not self._has_length():
            self._body.is_whole = True
            self._body.told()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Closed or reset."""
        self._fail("it closed the connection" if error is None else "the connection broke")

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of the header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(f"its header is over {MAX_HEADER_BYTES} bytes")
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The header is whole."""
        status = self._parser.get_status_code()
        if self._body.is_whole:
            self._fail("it sent two answers to one request")
            return
        self._header_bytes = 0
        if status >= FIRST_FINAL and self._head is not None and not self._head.done():
            self._head.set_result(Head(status, self._headers))
        self._headers = {} if status < FIRST_FINAL else self._headers

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._body.is_whole and self.on_whole is None:
            self._body.put(body)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it only announced another one."""
        if self._parser.get_status_code() < FIRST_FINAL:
            return
        self._body.is_whole = True
        if not self._parser.should_keep_alive():  # told only here: the parser then starts anew
            self.cut()

    # --- what the client calls ---

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent over it."""
        can = self._transport is not None and not self._transport.is_closing()
        return can and self._body.lost is None and self._body.is_read

    @property
    def may_stay(self) -> bool:
        """Whether the answer has ended in a way that leaves the connection usable."""
        return self._body.is_whole and self.is_usable

    async def ask(self, data: bytes) -> Head:
        """Send a request; the header of its answer. Raises UpstreamBroken."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._header_bytes = {}, 0
        self._body, self.has_read = Body(), False
        self._head = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._head

    async def read(self) -> bytes:
        """What has come of the body since the last call; b"" at its end. Raises UpstreamBroken."""
        data = await self._body.read()
        if len(data) > PAUSE_BYTES and self._transport is not None:
            self._transport.resume_reading()
        return data

    async def pump(self, take: Take) -> bool:
        """Give pieces to `take` as they come; see `Body.pump`."""
        if self._body.num_bytes > PAUSE_BYTES and self._transport is not None:
            self._transport.resume_reading()  # it is all taken at once
        return await self._body.pump(take)

    def cut(self) -> None:
        """Close it now, whatever was under way."""
        if self._transport is not None:
            self._transport.abort()

    def _has_length(self) -> bool:
        names = self._headers
        return "content-length" in names or "chunked" in names.get("transfer-encoding", "").lower()

    def _fail(self, problem: str) -> None:
        body = self._body
        if body.lost is None:
            body.lost = UpstreamBroken(f"the upstream failed: {problem}", RETRY_AFTER)
        if self._head is not None and not self._head.done():
            self._head.set_exception(body.lost)
            self._head.exception()  # who was cancelled meanwhile does not ask for it
        body.told()
        self.cut()


class Reply:
    """An answer whose header has come. Close it, whatever happens."""

    def __init__(self, client: "HttpClient", connection: Connection, head: Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self._client = client
        self._connection = connection
        self._is_open = True

    async def read(self) -> bytes:
        """The next piece of the body, b"" at its end; raises UpstreamBroken."""
        return await self._connection.read()

    async def pump(self, take: Take) -> bool:
        """Give each piece to `take` in the turn in which it comes, as long as that says True.

        False: the body has ended, or it breaks; `read` tells which.
        """
        return await self._connection.pump(take)

    async def whole(self, max_bytes: int) -> bytes:
        """The rest of the body; raises UpstreamBroken, also where it is longer."""
        parts = bytearray()
        while piece := await self.read():
            parts += piece
            if len(parts) > max_bytes:
                raise UpstreamBroken(f"its answer is over {max_bytes} bytes", RETRY_AFTER)
        return bytes(parts)

    def close(self, *, ends_soon: bool = False) -> None:
        """Give the connection back if the answer was read to its end, else cut it.

        ends_soon  all that matters was read, and the rest may come in a moment
        """
        if self._is_open:
            self._is_open = False
            self._client.give_back(self._connection, ends_soon=ends_soon)


class HttpClient:
    """Requests to one server. All methods belong to the event loop."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._idle: deque[Connection] = deque()  # the longest unused first

    async def send(self, head: str, body: bytes, connect_s: float) -> Reply:
        """Send a request; its answer once the header is here.

        head  request line and header without Host, Connection and what frames the body
        Raises UpstreamBroken and UpstreamTimeout; NotConnected where nothing was sent.
        """
        length = f"content-length: {len(body)}\r\n" if body else ""
        line, _, rest = head.partition("\r\n")
        host = f"host: {self.endpoint.authority}\r\n"
        data = f"{line}\r\n{host}{rest}{KEEP_ALIVE_HEADERS}{length}\r\n".encode("latin-1") + body
        while (kept := self._take_idle()) is not None:
            try:
                return await self._ask(kept, data)
            except UpstreamBroken:
                if kept.has_read:
                    raise
                # Closed while it was idle: the server has not seen the request.
        return await self._ask(await self._connect(connect_s), data)

    def give_back(self, connection: Connection, *, ends_soon: bool = False) -> None:
        """An answer has ended, or nobody wants the rest of it."""
        loop = asyncio.get_running_loop()
        if connection.may_stay:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        elif ends_soon and connection.is_usable:
            timer = loop.call_later(END_S, connection.cut)

            def whole() -> None:
                timer.cancel()
                connection.on_whole = None
                loop.call_soon(self.give_back, connection)

            connection.on_whole = whole
        else:
            connection.cut()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().cut()

    async def _ask(self, connection: Connection, data: bytes) -> Reply:
        try:
            head = await connection.ask(data)
        except BaseException:
            connection.cut()
            raise
        return Reply(self, connection, head)

    def _take_idle(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().cut()
        while self._idle:
            connection = self._idle.pop()  # the last used one: the others may grow old and go
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, connect_s: float) -> Connection:
        endpoint = self.endpoint
        name = endpoint.host if self._tls is not None else None
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, endpoint.host, endpoint.port, ssl=self._tls, server_hostname=name
                )
        except TimeoutError:
            raise UpstreamTimeout(
                f"no connection to the upstream within {connect_s:g} s", RETRY_AFTER
            ) from None
        except ssl.SSLError as error:
            raise NotTrusted(error) from error
        except OSError as error:
            raise NotConnected(
                f"no connection to the upstream: {type(error).__name__}", RETRY_AFTER
            ) from error
        return connection


def _advice(error: ssl.SSLError) -> str:
    """What is wrong, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_NAME:
            return (
                f"its certificate is for another name ({error.verify_message}): url must have a "
                f"name of the certificate"
            )
        return (
            f"its certificate is not trusted ({error.verify_message}): name the file of the "
            f"authority that issued it in tls.ca_file, or in SSL_CERT_FILE"
        )
    if error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: its url must begin with http://, or the port is wrong"
    return f"TLS with it fails ({error.reason or type(error).__name__})"


def tls_context(settings: Tls) -> ssl.SSLContext:
    """How its server is trusted; reads files, and raises OSError where they cannot be used."""
    context = ssl.create_default_context(cafile=settings.ca_file)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file is not None:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
