"""Frames between two processes of one host, over ZeroMQ's ipc:// transport.

Each direction has a PAIR socket of its own, because a ZeroMQ socket belongs to one thread
and in the replica one thread receives while others send. A PAIR socket takes one peer and
turns others away. Queues are unlimited, so the engine never waits for a slow server.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from headway.core.base.errors import BadFrame, StartError
from headway.core.messages.health import Report
from headway.core.messages.path import Command
from headway.service.wire import codec

log = logging.getLogger(__name__)

# sun_path of a Unix socket, less its closing zero byte.
MAX_PATH_BYTES = 107
FRAMES_PER_WAKE = 256
LAST_WORDS_MS = 1000  # how long a closing replica waits for its last report to leave


class ServerLink:
    """The server's end: binds both sockets, hands every report to a callback.

    All methods run on the thread of the event loop. A new link is made for each start of a
    replica, so that nothing of a dead process can reach its successor.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Bind `name`-commands and `name`-reports in `folder`, which only the owner may enter."""
        commands, reports = folder / f"{name}-commands", folder / f"{name}-reports"
        self.commands_address = f"ipc://{commands}"
        self.reports_address = f"ipc://{reports}"
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PAIR)
        self._reports = self._context.socket(zmq.PAIR)
        try:
            _bind(self._commands, commands)
            _bind(self._reports, reports)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._on_report: Callable[[Report], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, on_report: Callable[[Report], None]) -> None:
        """Call `on_report` for each report from now on, in order."""
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reports.fileno(), self.drain)

    def send(self, command: Command) -> bool:
        """Send a command; False when no replica is connected. Never blocks."""
        try:
            self._commands.send(codec.encode(command), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def drain(self) -> None:
        """Hand over what has arrived; a bounded number of frames, the rest in the next turn.

        The socket's descriptor is edge-triggered: it is readable again only after all that
        was there has been read, so reading stops at nothing less.
        """
        try:
            for _ in range(FRAMES_PER_WAKE):
                if self._reports.closed:
                    return
                self._hand_over(self._reports.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
        except BaseException:
            self._drain_soon()  # a callback that fails must not leave frames behind unread
            raise
        self._drain_soon()

    def _drain_soon(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self.drain)

    def _hand_over(self, frame: bytes) -> None:
        try:
            report = codec.decode_report(frame)
        except BadFrame as error:
            log.warning("bad_frame_dropped", extra={"side": "server", "problem": error.message})
            return
        if self._on_report is not None:
            self._on_report(report)

    def close(self) -> None:
        """Stop listening and remove the sockets; calling it twice is harmless."""
        if self._loop is not None and not self._reports.closed:
            self._loop.remove_reader(self._reports.fileno())
        self._context.destroy(linger=0)


class ReplicaLink:
    """The replica's end: `receive` is for one thread, `send` for any."""

    def __init__(self, commands_address: str, reports_address: str) -> None:
        """Connect to the sockets that a server has bound."""
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PAIR)
        self._reports = self._context.socket(zmq.PAIR)
        self._sending = threading.Lock()
        for socket, address in (
            (self._commands, commands_address),
            (self._reports, reports_address),
        ):
            _set_limits(socket)
            socket.connect(address)
        self._reports.linger = LAST_WORDS_MS

    def send(self, report: Report) -> None:
        """Queue a report for the server; never waits for it. Dropped after `close`."""
        frame = codec.encode(report)
        with self._sending:
            if not self._reports.closed:
                self._reports.send(frame)

    def receive(self) -> Command | None:
        """Wait for the next command; None once the link is closed."""
        while True:
            try:
                return codec.decode_command(self._commands.recv())
            except BadFrame as error:
                log.warning(
                    "bad_frame_dropped", extra={"side": "replica", "problem": error.message}
                )
            except zmq.ContextTerminated:
                self._commands.close(linger=0)
                return None

    def close(self) -> None:
        """Send what is queued, for at most LAST_WORDS_MS, and wake the receiving thread.

        Returns once that thread has left `receive`; some thread must be in it.
        """
        with self._sending:
            self._reports.close()
        self._context.term()


def remove_sockets(*addresses: str) -> None:
    """Remove sockets that their server left behind, and their folder if it is empty then."""
    paths = [Path(address.removeprefix("ipc://")) for address in addresses]
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with contextlib.suppress(OSError):  # it holds something else, or is gone already
            folder.rmdir()


def _bind(socket: "zmq.Socket[bytes]", path: Path) -> None:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise StartError(
            f"the socket path {path} is over {MAX_PATH_BYTES} bytes; "
            f"set TMPDIR to a folder with a shorter name"
        )
    _set_limits(socket)
    socket.linger = 0
    socket.bind(f"ipc://{path}")
    path.chmod(0o600)


def _set_limits(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, codec.MAX_FRAME_BYTES)
