"""Starting, watching and ending one server with all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

POLL_S = 0.02
STOP_S = 30.0  # after SIGTERM, for the whole process group
KILLED_S = 30.0  # after SIGKILL, which a busy machine takes a moment for
ALERT = ("error", "cannot", "failed", "no space", "not found", "no such", "in use", "denied")


class ServerFailedError(Exception):
    """A server that did not start, in one line."""


class Server(NamedTuple):
    """A running server."""

    process: subprocess.Popen[bytes]
    base_url: str
    ready_s: float  # from its start


@contextmanager
def started(
    command: Sequence[str],
    base_url: str,
    health: str,
    log: Path,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that is ready, in a process group of its own, which has ended afterwards.

    Its output goes to `log`. Raises ServerFailedError when it ends or is not ready in time.
    """
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, env=env
        )
    try:
        _wait_until_ready(process, base_url + health, log, timeout)
        yield Server(process, base_url, time.monotonic() - began)
    finally:
        end_group(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, timeout: float
) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailedError(
                f"it ended with status {process.returncode}: {reason_in(log.read_text())}"
            )
        with contextlib.suppress(httpx.TransportError):  # not listening yet
            if httpx.get(url, timeout=5.0).status_code == httpx.codes.OK:
                return
        time.sleep(POLL_S)
    raise ServerFailedError(f"not ready within {timeout:g} s: {reason_in(log.read_text())}")


def reason_in(text: str) -> str:
    """The last line of an output that looks like a fault, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if any(word in line.lower() for word in ALERT)]
    return (faults or lines or ["it said nothing"])[-1][:300]


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started: politely, then by force."""
    for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILLED_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not group_lives(process.pid):
                process.wait()  # it has ended; reaped it is gone
                return
            time.sleep(POLL_S)


def group_lives(group: int) -> bool:
    """Whether any process of the group is left that still runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                todo += [int(child) for child in children.read_text().split()]
    return found


def memory_mib(pid: int) -> dict[str, float]:
    """Memory of a process tree in MiB: PSS counts what processes share once, RSS each time."""
    totals = {"pss_mib": 0.0, "rss_mib": 0.0}
    for each in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("Pss", "Rss"):
                    totals[f"{name.lower()}_mib"] += int(value.split()[0]) / 1024
    return totals
