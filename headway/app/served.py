"""A server of our own for a benchmark: started on a free port, stopped at the end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from headway.core.base.errors import StartError

START_S, STOP_S, POLL_S = 300.0, 60.0, 0.1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Served(NamedTuple):
    """Where a server answers, and its process where that is ours."""

    base_url: str
    pid: int | None = None


@contextmanager
def running_server(options: Sequence[str]) -> Iterator[Served]:
    """`headway serve` with these options, ready; raises StartError when it does not get there."""
    port = free_port()
    command = [sys.executable, "-m", "headway.app.cli", "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        served = Served(f"http://127.0.0.1:{port}", process.pid)
        _wait_until_ready(process, served.base_url + "/ready")
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident_bytes(pid: int) -> int:
    """Memory of a process and of all below it; 0 once they have ended."""
    total, todo = 0, [pid]
    while todo:
        each = todo.pop()
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE_BYTES
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                todo += map(int, children.read_text().split())
        except OSError:  # it has ended meanwhile
            continue
    return total


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError(f"the server ended with status {process.returncode}; see above")
        try:
            if httpx.get(url, timeout=5.0, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(POLL_S)
    raise StartError(f"the server was not ready within {START_S:g} s")
