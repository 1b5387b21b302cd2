"""A server's memory after many requests is what it was after the first ones."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import Server, until
from tests.soak.scale import scaled

NUM_REQUESTS = 10_000
CLIENTS = 8
MAY_GROW = 50 << 20  # bytes
COMPLETIONS = "/v1/completions"


@pytest.fixture
def server(tmp_path: Path, smollm2_path: str) -> Iterator[Server]:
    """A server of its own, so that nothing else has used its memory."""
    made = Server(tmp_path, smollm2_path).wait_ready()
    yield made
    assert made.stop() == 0


def resident(server: Server) -> int:
    """Bytes of the server and of its engine."""
    processes = [psutil.Process(server.process.pid), *server.children()]
    return sum(int(process.memory_info().rss) for process in processes)


def ask(server: Server, number: int) -> int | None:
    """One request with an id, a tenant's name and a stop string of its own; its status."""
    body: dict[str, Any] = {
        "prompt": [1000 + (7 * number + place) % 40_000 for place in range(10)],
        "max_tokens": 2,
        "temperature": 0,
        "stop": [f"never {number}"],
        "user": f"user-{number}",
    }
    if number % 100 == 50:
        body["max_tokens"] = -number  # invalid
    headers = {"X-Request-Id": f"own-{number}"}
    if number % 100 == 75:
        with suppress(httpx.TimeoutException):  # a client that leaves
            server.post(COMPLETIONS, body | {"max_tokens": 200}, headers=headers, timeout=0.02)
        return None
    return server.post(COMPLETIONS, body, headers=headers).status_code


@pytest.mark.soak
@pytest.mark.spec("L5")
def test_memory_kv_accounting_02_a_server_does_not_grow_with_its_requests(server: Server) -> None:
    total = scaled(NUM_REQUESTS)
    statuses: list[int | None] = []
    sizes = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        for part in range(10):
            numbers = range(part * total // 10, (part + 1) * total // 10)
            statuses += pool.map(lambda number: ask(server, number), numbers)
            until(server.is_idle_and_clean, 5.0, "idle and clean")
            sizes.append(resident(server))
    assert statuses.count(400) == len(range(50, total, 100))
    assert statuses.count(None) == len(range(75, total, 100))
    assert statuses.count(200) == total - statuses.count(400) - statuses.count(None)
    settled, last = sizes[1], sizes[-1]
    assert last <= max(1.05 * settled, settled + MAY_GROW), sizes
    counted = server.metrics()
    ended = sum(n for name, n in counted.items() if name.startswith("headway_requests_total{"))
    assert ended == total
