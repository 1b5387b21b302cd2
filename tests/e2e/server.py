"""A real server in a child process, and what every test may ask of it."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from headway.service.store.database import file_url, open_database
from tests.no_tls import NO_TLS
from tests.ports import free_port as free_port  # for those who start others beside it

PROBE = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
DATA_HOME = "data-home"
SLOWNESS = float(os.environ.get("HEADWAY_TEST_SLOWNESS", "1"))  # scales every deadline
POLL_S = 0.05  # a look takes both sides a millisecond or more
PATIENCE_S = 60.0  # nothing is given up sooner, whatever else this machine does


def until(claim: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll `claim` until it holds; fails with `what` after `seconds`, or PATIENCE_S if longer.

    `seconds` is what it takes on an idle machine at most.
    """
    limit_s = max(seconds, PATIENCE_S) * SLOWNESS
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(POLL_S)


def strict_json(text: str | bytes) -> Any:
    """Parse, refusing NaN and Infinity, which JSON does not have."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@functools.cache
def empty_database() -> bytes:
    """A file with the newest schema and nothing in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headway.db"
        open_database(file_url(path)).close()
        return path.read_bytes()


def seed(folder: Path) -> None:
    """Spare a server that begins there the second that making its file takes."""
    place = folder / DATA_HOME / "headway"
    place.mkdir(parents=True, mode=0o700)
    (place / "headway.db").write_bytes(empty_database())
    (place / "headway.db").chmod(0o600)


class Server:
    """`headway serve` on a free port; its output goes to a file."""

    def __init__(self, folder: Path, model: str | None, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "headway.app.cli", "serve"]
        command += [] if model is None else ["--model", model]
        command += ["--port", str(self.port), *options]
        # What it keeps by default; the tests' own, and no other server's.
        self.data_home = folder / DATA_HOME
        environment = os.environ | {"XDG_DATA_HOME": str(self.data_home)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.client = httpx.Client(base_url=self.url, timeout=120.0, verify=NO_TLS)

    def wait_ready(self, seconds: float = 120.0) -> "Server":
        """Returns once /ready says yes."""

        def ready() -> bool:
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-2000:]}"
            return self.status_of("/ready") == 200

        until(ready, seconds, "ready")
        return self

    def status_of(self, path: str) -> int | None:
        """The status of a GET, or None while nobody listens."""
        try:
            return self.client.get(path, timeout=10.0).status_code
        except httpx.TransportError:
            return None

    def post(self, path: str, body: Mapping[str, Any], **more: Any) -> httpx.Response:
        """A POST with a JSON body."""
        return self.client.post(path, json=dict(body), **more)

    def complete(self, prompt: Any = PROBE["prompt"], **fields: Any) -> dict[str, Any]:
        """A greedy completion; the answer must be a 200."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        found = strict_json(answer.content)
        assert isinstance(found, dict)
        return found

    def chat(self, content: Any = "Hi", **fields: Any) -> dict[str, Any]:
        """A greedy chat answer; it must be a 200."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}
        answer = self.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        found = strict_json(answer.content)
        assert isinstance(found, dict)
        return found

    def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """All data events of a streamed answer, which must end with [DONE]."""
        return list(self.iterate(path, **fields))

    def iterate(self, path: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Data events as they come."""
        body = {"temperature": 0, "stream": True, **fields}
        with self.client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            done = False
            for line in answer.iter_lines():
                if line.startswith("data: [DONE]"):
                    done = True
                elif line.startswith("data: "):
                    assert not done, "an event after [DONE]"
                    yield strict_json(line[6:])
            assert done, "no [DONE]"

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics, summed over labels, and each one under its full name too."""
        found: dict[str, float] = {}
        for line in self.client.get("/metrics").text.splitlines():
            if match := re.match(r"^([a-zA-Z_:0-9]+)(\{.*\})? (\S+)$", line):
                name, labels, value = match[1], match[2] or "", float(match[3])
                found[name] = found.get(name, 0.0) + value
                if labels:
                    found[name + labels] = value
        return found

    def is_idle_and_clean(self) -> bool:
        """Nothing runs or waits, and no block has an owner."""
        now = self.metrics()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "request_queue_length")
        gauges = (*names, "headway_requests_in_flight", "vllm:kv_cache_usage_perc")
        return all(now[name] == 0 for name in gauges)

    def children(self) -> list[psutil.Process]:
        """Child processes that live."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, then wait; returns the exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds * SLOWNESS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """Joined text of one choice of a streamed answer, chat or completion."""
    pieces = []
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                pieces.append(
                    choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                )
    return "".join(pieces)


def finish_reasons(events: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Non-null finish reasons by choice."""
    found: dict[int, list[str]] = {}
    for event in events:
        for choice in event["choices"]:
            if choice.get("finish_reason"):
                found.setdefault(choice["index"], []).append(choice["finish_reason"])
    return found
