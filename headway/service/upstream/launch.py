"""A server that this gateway starts, waits for, starts again when it ends, and ends with itself."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading

from headway.service.upstream.replica import UpstreamReplica
from headway.service.upstream.settings import Endpoint, UpstreamSettings

log = logging.getLogger(__name__)

PAUSE_FIRST_S = 1.0  # before a start after an end; doubles with each in a row
PAUSE_LIMIT_S = 60.0
WELL_S = 60.0  # of a life after which the next end is the first one again
POLL_S = 0.25
STDERR_FD = 2
# Ends the child's whole group when we are gone without having ended it, killed for one: it waits
# for its input, the other end of which only we hold, to close.
GUARD = ("/bin/sh", "-c", 'trap "" TERM; cat >/dev/null; kill -s KILL -- "-$0" 2>/dev/null')


class LaunchedServer:
    """The process of one replica, and all below it: a process group of its own."""

    def __init__(self, settings: UpstreamSettings, endpoint: Endpoint) -> None:
        self._command = tuple(_filled(word, endpoint) for word in settings.launch)
        self._settings = settings
        self.label = endpoint.label
        self.num_starts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        return None if self._child is None or self._ended.is_set() else self._child.pid

    async def keep(self, replica: UpstreamReplica) -> None:
        """Start it, and again whenever it ends; for ever. Its probes say when it can answer."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            if self._start():
                reason = await self._lives(replica)
            else:
                reason = "its program cannot be run"
            replica.gone(f"its process ended ({reason}) and is started again")
            failures = 0 if loop.time() - began >= WELL_S else failures + 1
            pause = min(PAUSE_LIMIT_S, PAUSE_FIRST_S * 2.0 ** max(0, failures - 1))
            about = {"replica": self.label, "reason": reason, "pause_s": pause}
            log.warning("upstream_process_ended", extra=about)
            await self._end()
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """End it and all below it; nothing of it is left afterwards."""
        await self._end()

    def _start(self) -> bool:
        """Start the process; whether that was possible."""
        self.num_starts += 1
        self._ended = asyncio.Event()
        try:
            # Its words belong to the log, never to what we print.
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=STDERR_FD,
                start_new_session=True,
            )
        except OSError as error:
            about = {"replica": self.label, "program": self._command[0], "reason": error.strerror}
            log.error("upstream_process_cannot_start", extra=about)
            return False
        self._child = child
        self._guard = subprocess.Popen(
            (*GUARD, str(child.pid)), stdin=subprocess.PIPE, start_new_session=True
        )
        loop, ended = asyncio.get_running_loop(), self._ended

        def wait() -> None:
            child.wait()
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()
        log.info("upstream_process_started", extra={"replica": self.label, "pid": child.pid})
        return True

    async def _lives(self, replica: UpstreamReplica) -> str:
        """Wait for its end, or for its health to be late; why it does not live any more."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._settings.launch_timeout
        while not replica.is_healthy and not self._ended.is_set():
            if loop.time() >= due:
                return f"no health within {self._settings.launch_timeout:g} s"
            await asyncio.sleep(POLL_S)
        await self._ended.wait()
        assert self._child is not None
        return f"status {self._child.returncode}"

    async def _end(self) -> None:
        """SIGTERM to its group, and SIGKILL to what is left of that after a while."""
        child = self._child
        if child is None:
            return
        _signal(child.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_timeout):
                await self._ended.wait()
        _signal(child.pid, signal.SIGKILL)
        await self._ended.wait()
        self._child = None
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            await asyncio.to_thread(guard.wait)
            if guard.stdin is not None:
                guard.stdin.close()


def _filled(word: str, endpoint: Endpoint) -> str:
    return word.replace("{port}", str(endpoint.port)).replace("{host}", endpoint.host)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
