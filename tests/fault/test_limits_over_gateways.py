"""Limits over three gateway processes and one real Redis."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import redis as client_of_redis

from headway.core.tenancy.bucket import UNIT
from headway.core.tenancy.limits import LEASE_S, Limits
from tests.fault.limited_gateway import KEY
from tests.services.servers import Redis

ROOT = Path(__file__).parents[2]
TRIES = 2_000
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10, "stream": True}


@contextmanager
def gateways(url: str, limits: Limits, mode: str, count: int) -> Iterator[list[tuple[int, int]]]:
    """(port, pid) of so many gateway processes."""
    command = [sys.executable, "-m", "tests.fault.limited_gateway", url]
    command += [msgspec.json.encode(limits).decode(), mode]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        ports = []
        for process in started:
            assert process.stdout is not None
            ports.append((int(process.stdout.readline()), process.pid))
        yield ports
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class Try:
    """A connection, and a request that is ready to be sent over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, port: int) -> "Try":
        """Connected, and nothing sent yet."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def status(self) -> int:
        """Send the request; the answer's status."""
        body = json.dumps(BODY).encode()
        self._writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
            % (KEY.encode(), len(body), body)
        )
        line = await self._reader.readline()
        return int(line.split()[1])

    async def until(self, text: bytes) -> None:
        """Read until a line with this text."""
        while text not in await self._reader.readline():
            pass

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def all_at_once(ports: Sequence[int], count: int) -> Counter[int]:
    """Statuses of so many requests that are sent together."""
    tries = [await Try.at(ports[number % len(ports)]) for number in range(count)]
    try:
        return Counter(await asyncio.gather(*(each.status() for each in tries)))
    finally:
        for each in tries:
            each.close()


@pytest.fixture
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.spec("M4")
@pytest.mark.usefixtures("_many_files")
def test_of_2000_tries_at_3_gateways_exactly_as_many_as_there_are_slots_are_served(
    redis_url: str,
) -> None:
    limits = Limits(concurrent_requests=700)
    with gateways(redis_url, limits, "hold", 3) as started:
        found = asyncio.run(all_at_once([port for port, _ in started], TRIES))
    assert found == {200: 700, 429: TRIES - 700}


@pytest.mark.spec("M4")
@pytest.mark.usefixtures("_many_files")
def test_of_2000_tries_at_3_gateways_exactly_the_limit_and_what_drained_is_served(
    redis_url: str,
) -> None:
    limit = 1_000
    limits = Limits(requests_per_minute=limit, tokens_per_minute=10**9)
    with gateways(redis_url, limits, "answer", 3) as started:
        ports = [port for port, _ in started]
        # So many that the bucket is not empty again before the others come: then it drains
        # without a pause, and what has drained is known exactly.
        first = asyncio.run(all_at_once(ports, TRIES // 10))
        used_first, first_ms = bucket_of(redis_url)
        rest = asyncio.run(all_at_once(ports, TRIES - TRIES // 10))
    assert first == {200: TRIES // 10}
    assert set(rest) == {200, 429}
    used, last_ms = bucket_of(redis_url)
    # By Redis's own clock: all that was let in is still held, or has drained.
    assert used_first + rest[200] * UNIT == used + (last_ms - first_ms) * limit
    assert used <= limit * UNIT, "not one above the limit"
    assert first[200] + rest[200] >= limit, "none below it was refused"


def bucket_of(redis_url: str) -> tuple[int, int]:
    """Units that acme's bucket of requests held when it was last written, and when that was, ms."""
    with client_of_redis.Redis.from_url(redis_url) as redis:
        raw = redis.hget("headway:{t:acme}:buckets", "requests")
    assert isinstance(raw, bytes)
    used, at_ms = (int(word) for word in raw.split()[:2])
    return used, at_ms


@pytest.mark.spec("A2")
def test_a_slot_of_a_gateway_that_was_killed_is_free_after_its_lease_rate_limits_02(
    redis_server: Redis, redis_url: str
) -> None:
    limits = Limits(concurrent_requests=1)

    async def scenario(doomed: tuple[int, int], other: tuple[int, int]) -> None:
        stream = await Try.at(doomed[0])
        assert await stream.status() == 200
        await stream.until(b'"x"')
        assert (await all_at_once([other[0]], 1)) == {429: 1}
        os.kill(doomed[1], signal.SIGKILL)
        stream.close()
        slots = "headway:{t:acme}:slots"
        with client_of_redis.Redis.from_url(redis_server.url) as redis:
            ((member, ends_ms),) = redis.zrange(slots, 0, -1, withscores=True)
            seconds, micros = redis.time()
            left_s = ends_ms / 1000 - seconds - micros / 1e6
            assert left_s <= LEASE_S
            assert (await all_at_once([other[0]], 1)) == {429: 1}
            redis.zincrby(slots, -left_s * 1000 - 1, member)  # as when that long has passed
        assert (await all_at_once([other[0]], 1)) == {200: 1}

    with gateways(redis_url, limits, "hold", 2) as started:
        asyncio.run(scenario(started[0], started[1]))
