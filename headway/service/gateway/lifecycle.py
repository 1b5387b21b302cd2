"""The listening socket, the server's loop and its graceful end."""

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import msgspec
import uvicorn

from headway.core.base.errors import InvalidSetting
from headway.service.gateway.http import Receive, Scope, Send
from headway.service.gateway.http_limits import LimitedProtocol
from headway.service.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

SEND_BUFFER_BYTES = 64 * 1024  # a reader that stops is noticed after about this much
BACKLOG = 2048
CLOSE_S = 2.0  # for the last bytes to leave after the last answer
CLOSE_POLL_S = 0.005
TICK_S = 1.0  # the oldest that the date in an answer may be
SIGNALS = (signal.SIGTERM, signal.SIGINT)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def bind(settings: GatewaySettings) -> socket.socket:
    """A socket for `HttpServer`; raises InvalidSetting when host or port cannot be had.

    It does not listen yet: until there is a server, clients are refused instead of left
    waiting.
    """
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise InvalidSetting("--host", f"{settings.host} is no address: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. A large buffer would hide for megabytes that nobody reads.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(settings, error) from None
    return listener


def check_admin_listen(settings: GatewaySettings) -> None:
    """Raise InvalidSetting for a listener of /admin that nobody could use."""
    if settings.admin_listen is not None and not settings.admin_key:
        raise InvalidSetting("--admin-listen", "needs an --admin-key")


def bind_admin(settings: GatewaySettings) -> socket.socket | None:
    """The same for /admin where it has a listener of its own; raises InvalidSetting."""
    check_admin_listen(settings)
    if settings.admin_listen is None:
        return None
    host, _, port = settings.admin_listen.rpartition(":")
    own = msgspec.structs.replace(settings, host=host.strip("[]"), port=int(port))
    try:
        return bind(own)
    except InvalidSetting as error:
        raise InvalidSetting("--admin-listen", error.message.partition(": ")[2]) from None


def _cannot_listen(settings: GatewaySettings, error: OSError) -> InvalidSetting:
    if error.errno == errno.EADDRINUSE:
        problem = (
            f"{settings.port} is in use on {settings.host}; stop what uses it, or give another port"
        )
        return InvalidSetting("--port", problem)
    if error.errno == errno.EACCES:
        return InvalidSetting(
            "--port", f"{settings.port} may not be used by this user; give one of 1024 or more"
        )
    return InvalidSetting("--host", f"cannot listen on {settings.host}: {error.strerror}")


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handlers and with our limits."""

    def __init__(self, app: App, settings: GatewaySettings, listener: socket.socket) -> None:
        config = uvicorn.Config(
            # uvicorn's own types are narrower than a plain mapping, and the same otherwise.
            cast("uvicorn._types.ASGI3Application", app),
            loop="uvloop",
            http="httptools",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_level="warning",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=max(1, round(settings.idle_timeout)),
        )
        config.load()
        config.http_protocol_class = cast(
            type[asyncio.Protocol], functools.partial(LimitedProtocol, settings)
        )
        super().__init__(config)
        self._listener = listener
        self._asked = asyncio.Event()

    async def run_until_stopped(self) -> None:
        """Serve until `stop`; no connection is left afterwards."""
        await self.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Close the socket and end; answers under way have `CLOSE_S` to leave."""
        self.should_exit = True
        self._asked.set()

    async def main_loop(self) -> None:
        """Renew the date in answers; uvicorn's own loop looks ten times a second for its end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, without its tenths of a second, and with no connection left at the end."""
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.sleep(0)  # connections are lost in the loop's next turn
                while state.connections or state.tasks:
                    await asyncio.sleep(CLOSE_POLL_S)
        for task in state.tasks:
            task.cancel()
        for connection in list(state.connections):
            # One that is closing may still wait for its client to read.
            cast(LimitedProtocol, connection).transport.abort()
        await asyncio.sleep(0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: `StopSignals` has them."""
        yield


class StopSignals:
    """SIGTERM and SIGINT as two events: the first asks to end, the second to end now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def install(self) -> None:
        """Take the signals of the running loop's process."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.take)

    def take(self) -> None:
        """A signal came."""
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()
        log.info("stop_asked", extra={"now": self.insisted.is_set()})
