"""An engine that is never left in peace: requests come and go, and are stopped at random."""

from contextlib import suppress
from random import Random

import pytest

from headway.core.base.errors import CapacityError
from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest, FinishReason, Sampling
from headway.core.messages.step import SamplingState
from tests.drive import Drive
from tests.fakes import hashed_next
from tests.mixed import asked, machine
from tests.soak.scale import scaled

LIVE = 12  # requests at once, about


def random_request(name: str, rng: Random) -> EngineRequest:
    stem = rng.randrange(4) * 100
    prompt = [*range(stem, stem + rng.randrange(20)), *(rng.randrange(256) for _ in range(6))]
    return asked(
        name,
        [token % 256 for token in prompt],
        rng.randrange(3),
        n=rng.choice((1, 1, 1, 2, 3)),
        sampling=Sampling(
            max_tokens=rng.randint(1, 36),
            seed=rng.randrange(4),
            temperature=rng.choice((0.0, 1.0)),
            prompt_logprobs=rng.random() < 0.2,
        ),
    )


def answer_of(request: EngineRequest, choice: int) -> list[int]:
    """The model in the plainest way: one token after the other."""
    tokens = list(request.prompt)
    state = SamplingState(request.sampling, choice, tokens, len(tokens), ())
    for position in range(request.sampling.max_tokens):
        tokens.append(hashed_next(tokens, state, position))
    return tokens[len(request.prompt) :]


def preempt_one(drive: Drive, rng: Random) -> None:
    scheduler = drive.core.scheduler
    if scheduler.running:
        victim = rng.choice(list(scheduler.running.values()))
        scheduler._preempt(victim, Seconds(drive.now))


def disturb(drive: Drive, live: dict[str, EngineRequest], rng: Random, step: int) -> None:
    """Something that happens to an engine between two steps."""
    if len(live) < LIVE and rng.random() < 0.4:
        request = random_request(f"r{step}", rng)
        with suppress(CapacityError):  # best effort under pressure
            drive.add(request)
            live[request.id] = request
    if live and rng.random() < 0.03:
        drive.cancel(rng.choice(list(live)))
    if rng.random() < 0.1:
        preempt_one(drive, rng)


def settle(drive: Drive, live: dict[str, EngineRequest]) -> int:
    """Compare what has ended with the model, and forget it; how many there were."""
    ended = [name for name in live if drive.answers[name].finished is not None]
    for name in ended:
        request, got = live.pop(name), drive.answers.pop(name)
        assert got.finished is not None
        was_cancelled = got.finished.reason is FinishReason.CANCELLED
        for choice in range(request.num_choices):
            want = answer_of(request, choice)
            tokens = got.tokens[choice]
            assert tokens == (want[: len(tokens)] if was_cancelled else want), name
    return len(ended)


@pytest.mark.soak
@pytest.mark.spec("D5")
@pytest.mark.spec("C6")
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("host", [0, 6, 30])
@pytest.mark.parametrize("caching", [True, False])
def test_nothing_leaks_and_no_answer_changes_whatever_happens(
    depth: int, host: int, caching: bool
) -> None:
    rng = Random(100 * depth + host + caching)
    drive = machine(
        depth,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        num_blocks=24,
        num_host_blocks=host,
        enable_prefix_caching=caching,
        prefix_cache_ttl=200.0,
    )
    live: dict[str, EngineRequest] = {}
    num_ended = 0
    for step in range(scaled(100_000) // 3):
        disturb(drive, live, rng, step)
        drive.step()
        drive.plans.clear()
        num_ended += settle(drive, live)
    drive.run()
    num_ended += settle(drive, live)
    assert not live
    assert num_ended > 20
    status = drive.core.status()
    assert status.preemptions > 10
    assert (status.preemptions_swapped > 0) == (host > 0)
    assert (status.swapped_in_blocks > 0) == (host > 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks
    assert not drive.core.scheduler.swap.kept
