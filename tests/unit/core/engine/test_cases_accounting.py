"""Blocks are counted once, whatever shares them and however their owners end."""

from random import Random

import pytest

from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, FinishReason, Sampling
from tests.drive import Drive
from tests.mixed import asked, machine

NUM_REQUESTS, AT_ONCE = 256, 64
TTL = 1e6  # seconds: nothing expires before the test says so


def crowd(rng: Random) -> list[EngineRequest]:
    """Eight shared beginnings, answers of every length, stop strings, two choices."""
    stems = [
        [rng.randrange(256) for _ in range(length)]
        for length in (40, 64, 90, 128, 200, 256, 333, 400)
    ]
    return [
        asked(
            f"r{number}",
            [*rng.choice(stems), *(rng.randrange(256) for _ in range(rng.randint(1, 9)))],
            rng.randrange(3),
            n=rng.choice((1, 1, 1, 2)),
            sampling=Sampling(
                max_tokens=rng.randint(1, 150),
                seed=number,
                temperature=rng.choice((0.0, 1.0)),
                stop=rng.choice(((), ("ab",), ("e",))),
                prompt_logprobs=rng.random() < 0.1,
            ),
        )
        for number in range(NUM_REQUESTS)
    ]


def play(run: Drive, requests: list[EngineRequest], rng: Random) -> set[str]:
    """Everybody, at most so many at a time; some leave anywhere. `step` checks every count."""
    waiting, left = list(reversed(requests)), set()
    live: set[str] = set()
    while waiting or live:
        while waiting and len(live) < AT_ONCE:
            request = waiting.pop()
            run.add(request)
            live.add(request.id)
        if rng.random() < 0.1:
            name = rng.choice(sorted(live))
            run.cancel(name)
            left.add(name)
            run.core.check()
        run.step()
        live = {name for name in live if run.answers[name].finished is None}
    return left


@pytest.mark.spec("D1")
@pytest.mark.spec("D5")
@pytest.mark.parametrize("host", [0, 64])
@pytest.mark.parametrize("depth", [0, 1])
def test_memory_kv_accounting_01_free_cached_and_held_blocks_are_all_there_are(
    depth: int, host: int
) -> None:
    rng = Random(depth + host)
    run = machine(
        depth,
        max_model_len=600,
        block_size=16,
        num_blocks=120,  # so few that sequences are stopped
        num_host_blocks=host,
        max_num_seqs=24,
        max_num_batched_tokens=512,
        ageing=1e9,
        prefix_cache_ttl=TTL,
    )
    left = play(run, crowd(rng), rng)
    for answer in run.answers.values():
        assert answer.finished is not None
    cancelled = {
        name
        for name, answer in run.answers.items()
        if answer.finished is not None and answer.finished.reason is FinishReason.CANCELLED
    }
    assert cancelled == left
    status = run.core.status()
    assert status.preemptions > 5
    assert status.prefix_hits > 0
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks
    # What is kept for each request is gone with it.
    assert not run.core.has_work()
    assert not run.core._streamers
    assert not run.core.scheduler.swap.kept
    # A flush: everything that is cached has not been used for its time.
    assert status.cached_blocks > 0
    assert run.core.plan(Seconds(run.now + 2 * TTL)) is None
    run.core.check()
    status = run.core.status()
    assert (status.free_blocks, status.host_blocks_used) == (status.total_blocks, 0)
