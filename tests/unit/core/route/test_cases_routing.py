"""Cases of users of other routers, over simulated replicas."""

import heapq
import random
from dataclasses import dataclass, field

import pytest

from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus, StepReport
from headway.core.messages.path import (
    EngineRequest,
    Finished,
    FinishReason,
    Sampling,
    Started,
    Usage,
)
from headway.core.route.policy import LeastWork, PrefixAffinity, RoutePolicy
from headway.core.route.router import Router

SLOTS, SERVICE_S, NUM_REPLICAS = 2, 1.0, 4
SHARED = tuple(range(8000))


@dataclass
class Worker:
    """Two requests at a time, a second each, whatever they are."""

    running: int = 0
    waiting: list[tuple[str, int]] = field(default_factory=list)  # id, prompt tokens
    num_steps: int = 0
    generated: int = 0
    warm: bool = False

    def status(self) -> ReplicaStatus:
        self.num_steps += 1
        return ReplicaStatus(
            num_running=self.running,
            num_waiting=len(self.waiting),
            waiting_tokens=sum(tokens for _, tokens in self.waiting),
            total_blocks=1,
            free_blocks=1,
            cached_blocks=0,
            num_steps=self.num_steps,
            generated_tokens=self.generated,
            prefill_rate=8000.0,
        )


@dataclass
class Result:
    latencies: list[float]
    worst_queue: float  # over the mean of all, where that is above one
    warm_share: float  # of the shared requests


def simulate(policy: RoutePolicy, seed: int) -> Result:
    rng = random.Random(seed)
    names = [str(number) for number in range(NUM_REPLICAS)]
    workers = {name: Worker() for name in names}
    router = Router(names, policy)
    arrivals: dict[str, float] = {}
    events: list[tuple[float, int, str, str]] = []  # when, order, worker ("" for an arrival), id
    at = 0.0
    for number in range(400):
        at += rng.expovariate(0.7 * NUM_REPLICAS * SLOTS / SERVICE_S)
        heapq.heappush(events, (at, number, "", f"r{number}"))
    order, shared, warm = 1000, 0, 0
    worst, latencies = 0.0, []

    def report(name: str, now: float, *found: Started | Finished) -> None:
        router.told(name, StepReport(events=found, status=workers[name].status()), Seconds(now))

    def fill(name: str, now: float) -> None:
        nonlocal order
        worker = workers[name]
        while worker.running < SLOTS and worker.waiting:
            request_id, _ = worker.waiting.pop(0)
            worker.running += 1
            order += 1
            heapq.heappush(events, (now + SERVICE_S, order, name, request_id))
            report(name, now, Started(request_id=request_id, at=Seconds(now), cached_tokens=0))

    while events:
        now, _, name, request_id = heapq.heappop(events)
        if name:
            worker = workers[name]
            worker.running -= 1
            worker.generated += 64
            latencies.append(now - arrivals[request_id])
            usage = Usage(prompt_tokens=1, completion_tokens=64)
            end = Finished(request_id=request_id, reason=FinishReason.LENGTH, usage=usage)
            report(name, now, end)
            fill(name, now)
            continue
        is_shared = rng.random() < 0.8
        own = rng.randrange(10**6)
        prompt = (*SHARED, own) if is_shared else tuple(own + each for each in range(1000))
        request = EngineRequest(
            id=request_id, prompt=prompt, sampling=Sampling(max_tokens=64, seed=0)
        )
        choice = router.choose(names, request, Seconds(now))
        assert choice is not None
        router.sent(choice, request_id, request)
        worker = workers[choice.id]
        if is_shared:
            shared += 1
            warm += worker.warm
            worker.warm = True
        arrivals[request_id] = now
        worker.waiting.append((request_id, len(prompt)))
        fill(choice.id, now)
        queues = [len(each.waiting) + each.running for each in workers.values()]
        mean = sum(queues) / len(queues)
        if mean > 1.0:
            worst = max(worst, max(queues) / mean)
    return Result(latencies, worst, warm / shared)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.spec("B5")
@pytest.mark.parametrize("seed", range(5))
def test_gateway_health_04_a_popular_prefix_does_not_fill_one_replica(seed: int) -> None:
    least = simulate(LeastWork(), seed)
    affine = simulate(PrefixAffinity("m", 10_000), seed)
    assert len(affine.latencies) == 400
    assert affine.worst_queue <= 3.0
    assert p95(affine.latencies) <= 1.5 * p95(least.latencies)
    assert affine.warm_share >= 0.6
