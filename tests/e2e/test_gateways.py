"""Three gateways over one Redis and one PostgreSQL, behind the real proxies; one of them dies."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from headway.core.messages.usage import RecordQuery
from headway.service.store.database import open_database
from headway.service.store.usage import SqlUsage
from tests.e2e.proxies import Proxy, envoy, nginx
from tests.e2e.server import free_port, until
from tests.unit.service.gateway.fakes import CHAT, HI
from tests.unit.service.loaders.samples import tiny

ADMIN = "an-admin-key-of-the-operator"
LIMIT = 10  # a minute: what they give back meanwhile, one in 6 s, is not to be counted


class Gateway:
    """One of them: `headway serve` with a scripted engine, 20 tokens a second."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = ("--port", str(self.port), "--admin-key", ADMIN, *options)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60.0)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it is ready."""
        module = "tests.unit.app.scripted_server"
        with (self._folder / f"{self.port}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "ready", "serve", *self._options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._is_ready, 60.0, "the gateway is ready")

    def kill(self) -> None:
        """At once, as the kernel would."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """In good order; harmless when it has ended."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)

    def admin(self, method: str, path: str, body: object = None) -> dict[str, str]:
        """A call of /admin."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        answer = self.client.request(method, f"/admin{path}", json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def takes(self, key: str) -> bool:
        """Whether the key is good here."""
        headers = {"authorization": f"Bearer {key}"}
        return self.client.get("/v1/models", headers=headers).status_code == 200

    def refuses(self, key: str) -> bool:
        """Whether it is not."""
        return not self.takes(key)

    def num_open(self) -> float:
        """Requests under way here."""
        lines = self.client.get("/metrics").text.splitlines()
        name = "headway_requests_in_flight{"
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "see its log"
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def gateways(folder: Path, database: str, redis: str) -> Iterator[list[Gateway]]:
    """Three, which share what outlives them."""
    model = tiny(folder / "tiny.gguf")
    options = ("--model", model, "--database-url", database, "--redis-url", redis)
    with ExitStack() as stack:
        found = []
        for _ in range(3):
            each = Gateway(folder, *options, "--data-dir", str(folder / "data"))
            stack.callback(each.client.close)
            stack.callback(each.stop)
            each.start()
            found.append(each)
        yield found


async def statuses(url: str, key: str, count: int, **fields: object) -> Counter[int]:
    """Of so many short requests that are sent together."""
    headers = {"authorization": f"Bearer {key}"}
    body = {**HI, "max_tokens": 1, **fields}
    async with httpx.AsyncClient(base_url=url, timeout=60.0, headers=headers) as client:
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(count)))
    return Counter(each.status_code for each in answers)


def read_tokens(lines: Iterator[str], count: int) -> int:
    """Read on to so many tokens, or to the end; how many came."""
    found = 0
    while found < count and "[DONE]" not in (line := next(lines)):
        # Those of a gateway that had no time come together.
        found += sum(len(content) for content in re.findall(r'"content":"(x+)"', line))
    return found


@pytest.mark.spec("M4")
@pytest.mark.spec("M5")
@pytest.mark.parametrize("proxy", [nginx, envoy])
def test_a_gateway_that_is_killed_takes_its_streams_with_it_and_nothing_else(
    tmp_path: Path, postgres_url: str, redis_url: str, proxy: Proxy
) -> None:
    with gateways(tmp_path, postgres_url, redis_url) as (one, two, three):
        with proxy(tmp_path, one.port, two.port, three.port) as url:
            limits = {"requests_per_minute": LIMIT}
            one.admin("POST", "/tenants", {"name": "bounded", "limits": limits})
            two.admin("POST", "/tenants", {"name": "free"})
            bounded = three.admin("POST", "/tenants/bounded/keys", {})
            free = one.admin("POST", "/tenants/free/keys", {})
            for gateway in (one, two, three):
                for made in (bounded, free):
                    until(partial(gateway.takes, made["key"]), 10.0, "it is known here")

            tries = asyncio.run(statuses(url, bounded["key"], 2 * LIMIT))
            assert tries == {200: LIMIT, 429: LIMIT}, "exact over all three"

            headers = {"authorization": f"Bearer {free['key']}"}
            body = {**HI, "stream": True, "max_tokens": 100}
            asked = httpx.stream("POST", url + CHAT, json=body, headers=headers, timeout=60.0)
            with asked as answer:
                assert answer.status_code == 200
                lines = answer.iter_lines()
                given = read_tokens(lines, 5)
                (victim,) = (each for each in (one, two, three) if each.num_open())
                victim.kill()
                with pytest.raises(httpx.RemoteProtocolError):
                    given += read_tokens(lines, 100)
            others = [each for each in (one, two, three) if each is not victim]
            for _ in range(3):  # at once, and while a proxy finds out
                assert asyncio.run(statuses(url, free["key"], 10)) == {200: 10}
            victim.start()  # as a supervisor would: it finds what it had under way
            others[0].admin("POST", f"/keys/{free['id']}/revoke")
            for gateway in (one, two, three):
                until(partial(gateway.refuses, free["key"]), 10.0, "it is revoked here")
            assert asyncio.run(statuses(url, free["key"], 6)) == {401: 6}
        for gateway in (one, two, three):
            gateway.stop()
    check_ledger(postgres_url, given)


def check_ledger(url: str, given: int) -> None:
    """Every request of a known caller once, also the one that was lost."""
    database = open_database(url)
    try:
        records = SqlUsage(database).page(RecordQuery(limit=1000)).records
    finally:
        database.close()
    outcomes = Counter((each.tenant, each.outcome) for each in records)
    assert outcomes == {
        ("bounded", "ok"): LIMIT,
        ("bounded", "rejected_limit"): LIMIT,
        ("free", "ok"): 30,
        ("free", "lost"): 1,
    }
    assert len({each.id for each in records}) == len(records) == 2 * LIMIT + 31
    (lost,) = (each for each in records if each.outcome == "lost")
    # What was handed over last may not have got as far as the client.
    assert given <= lost.sent_tokens + lost.unsure_tokens <= given + 2
