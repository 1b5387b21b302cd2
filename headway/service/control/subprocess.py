"""One replica as a child process: started, watched and ended from an event loop."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from headway.core.base.errors import StartError
from headway.service.control.waiting import until_set
from headway.service.wire.spec import Launch, encode_launch

log = logging.getLogger(__name__)

REPLICA_COMMAND: tuple[str, ...] = (sys.executable, "-m", "headway.app.replica")
STDERR_FD = 2


class ReplicaProcess:
    """A running child. It reads its launch from standard input and shares our stderr.

    Its standard input stays open as long as we live: the child ends itself when it closes.
    It has a session of its own, so that Ctrl-C in a terminal reaches the server alone, which
    then decides how the child ends.
    """

    def __init__(self, command: Sequence[str], launch: Launch) -> None:
        """Start it; raises StartError when the program cannot be run at all."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=STDERR_FD, start_new_session=True
            )
        except OSError as error:
            raise StartError(f"cannot start {command[0]}: {error.strerror}") from error
        self.pid = self._child.pid
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(encode_launch(launch))
            self._child.stdin.flush()
        except BrokenPipeError:
            log.warning("replica_died_at_start", extra={"pid": self.pid})
        # A thread that waits is told of the end at once, on every kernel and event loop.
        threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """Exit status, or the signal's number negated; None while it runs."""
        return self._child.returncode if self._ended.is_set() else None

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when `timeout_s` passed first."""
        return await until_set(self._ended, timeout_s)

    def terminate(self) -> None:
        """SIGTERM; harmless when it has ended."""
        self._child.terminate()

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        self._child.kill()

    def _wait(self) -> None:
        self._child.wait()
        if self._child.stdin is not None:
            _close_quietly(self._child.stdin)
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended.set)


def _close_quietly(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:  # what the buffer still held has no reader any more
        log.debug("launch_unread")
