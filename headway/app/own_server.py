"""A server for the time of one command, so that nothing has to be started first."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from headway.core.base.errors import StartError

POLL_S = 0.05
STOP_S = 10.0
LAST_LINES = 3  # of the server's output, told when it does not start


@contextmanager
def own_server(options: Sequence[str]) -> Iterator[str]:
    """The URL of `headway serve` with these options; it ends with the block.

    It may take as long as it likes to start (a first one downloads and compiles), and shows
    its progress. Raises StartError with what it said when it does not start.
    """
    port = _free_port()
    command = [sys.executable, "-m", "headway.app.cli", "serve", "--log-level", "error"]
    command += ["--host", "127.0.0.1", "--port", str(port), *options]
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C at the terminal is for the chat, not for the server.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while not _is_ready(url):
                if process.poll() is not None:
                    output.seek(0)
                    lines = output.read().decode(errors="replace").strip().splitlines()
                    raise StartError("the server did not start: " + " / ".join(lines[-LAST_LINES:]))
                time.sleep(POLL_S)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def model_options(model: str, cache_dir: str) -> list[str]:
    """Options of `headway serve` for a model's file; empty texts leave its defaults."""
    options = ["--model", str(Path(model))] if model else []
    return options + (["--cache-dir", cache_dir] if cache_dir else [])


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
