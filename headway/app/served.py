"""A server of our own for the time of one command: started on a free port, stopped at the end."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO, NamedTuple

from headway.core.base.errors import StartError

SERVE = (sys.executable, "-m", "headway.app.cli", "serve")
FREE_PORT = ("--port", "0")  # the server takes one, and says which
KEEPS_NOTHING = ("--data-dir", "none")  # requests of a benchmark are no usage of anybody's
START_S, STOP_S = 300.0, 60.0
URL = "URL"  # in front of the address in what a ready server prints
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Served(NamedTuple):
    """Where a server answers, and its process where that is ours."""

    base_url: str
    pid: int | None = None


@contextmanager
def running_server(command: Sequence[str], within: float = START_S) -> Iterator[Served]:
    """A server from the moment it is ready until the block ends.

    command  of `SERVE`, or of another program that prints the line `URL http://...`
    within   seconds after which a server that is not ready is ended

    Raises StartError, with the last line of its stderr, when it does not get that far.
    """
    with tempfile.TemporaryFile() as errors, _process(command, errors) as server:
        yield Served(_address(server, errors, within), server.pid)


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


@contextmanager
def _process(command: Sequence[str], errors: IO[bytes]) -> Iterator["subprocess.Popen[str]"]:
    try:
        # A session of its own: Ctrl-C at the terminal is for the command, not for its server.
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    except OSError as error:
        raise StartError(f"cannot start {command[0]}: {error.strerror}") from error
    with server:
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()


def _address(server: "subprocess.Popen[str]", errors: IO[bytes], within: float) -> str:
    """Wait until the server says that it is ready, and where."""
    assert server.stdout is not None, "its output is a pipe"
    alarm = Timer(within, server.kill)
    alarm.daemon = True
    alarm.start()
    try:
        for text in server.stdout:
            words = text.split()
            if words[:1] == [URL]:
                return words[1]
    finally:
        alarm.cancel()
    errors.seek(0)
    said = errors.read().decode(errors="replace").split("\n")
    last = next((text for text in reversed(said) if text.strip()), "it said nothing")
    raise StartError(f"the server ended with status {server.wait()} before it was ready: {last}")
