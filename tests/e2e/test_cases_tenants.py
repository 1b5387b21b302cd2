"""What one tenant asked is not to be found out by another: not by numbers, not by time."""

import math
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.e2e.server import Server, seed

COMPLETIONS = "/v1/completions"
TENANTS = ("--tenant", "acme:standard:sk-acme", "globex:standard:sk-globex")
COMPUTED = "headway_engine_computed_prompt_tokens_total"
TRIES = 30  # of each kind, timed


@pytest.fixture(scope="module")
def two_tenants(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A server of two; each test asks what no other has asked."""
    folder = tmp_path_factory.mktemp("two-tenants")
    seed(folder)
    made = Server(folder, smollm2_path, *TENANTS)
    try:
        yield made.wait_ready()
    finally:
        assert made.stop() == 0


def prompt(rng: Random, length: int) -> list[int]:
    return [rng.randrange(1000, 40_000) for _ in range(length)]


def cached(server: Server, key: str, ids: list[int], **more: Any) -> int:
    """Prompt tokens that were found when `key` asked."""
    headers = {"Authorization": f"Bearer {key}"} | more.pop("headers", {})
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, **more}
    answer = server.post(COMPLETIONS, body, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.spec("M12")
def test_security_side_channel_01_no_tenant_finds_what_another_asked(two_tenants: Server) -> None:
    server, rng = two_tenants, Random(1)
    attempts: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({}, 2),  # the first half of it
        ({"cache_salt": "acme"}, 1),
        ({"cache_salt": "acme\0"}, 1),
        ({"user": "acme", "headers": {"x-tenant-id": "acme", "x-cache-salt": "acme"}}, 1),
    ]
    for more, part in attempts:
        ids = prompt(rng, 1500 if part == 1 and not more else 100)
        assert cached(server, "sk-acme", ids) == 0
        mine = ids[: len(ids) // part]
        before = server.metrics()[COMPUTED]
        assert cached(server, "sk-globex", mine, **more) == 0
        assert server.metrics()[COMPUTED] == before + len(mine), "all of it was computed"
        assert cached(server, "sk-acme", ids) > 0
        assert cached(server, "sk-globex", mine, **more) > 0, "one's own is found"
        # A salt can only narrow what is one's own.
        assert cached(server, "sk-globex", mine, cache_salt="narrower") == 0


def seconds(server: Server, ids: list[int]) -> float:
    began = time.perf_counter()
    assert cached(server, "sk-globex", ids) == 0
    return time.perf_counter() - began


def chance(ones: list[float], others: list[float]) -> float:
    """p of the Mann-Whitney test, two-sided, by the normal approximation."""
    wins = sum((a < b) + 0.5 * (a == b) for a in ones for b in others)
    num, mean = len(ones) + len(others), len(ones) * len(others) / 2
    deviation = math.sqrt(len(ones) * len(others) * (num + 1) / 12)
    return math.erfc(abs(wins - mean) / deviation / math.sqrt(2))


@pytest.mark.spec("M12")
def test_security_side_channel_01_a_prompt_of_another_takes_as_long_as_any(
    two_tenants: Server,
) -> None:
    server, rng = two_tenants, Random(2)

    def measured() -> float:
        known: list[float] = []
        unknown: list[float] = []
        for _ in range(TRIES):
            asked, new = prompt(rng, 96), prompt(rng, 96)
            cached(server, "sk-acme", asked)
            for ids, times in ((asked, known), (new, unknown))[:: rng.choice((1, -1))]:
                times.append(seconds(server, ids))
        return chance(known, unknown)

    # By chance alone one run in a hundred says otherwise; a leak says so every time.
    assert measured() > 0.01 or measured() > 0.01


def test_the_comparison_of_times_sees_a_difference() -> None:
    rng = Random(3)
    slow = [rng.gauss(1.0, 0.1) for _ in range(TRIES)]
    fast = [rng.gauss(0.8, 0.1) for _ in range(TRIES)]
    same = [rng.gauss(1.0, 0.1) for _ in range(TRIES)]
    assert chance(slow, fast) < 1e-6
    assert chance(slow, same) > 0.01
