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


class Pool:
    """Workers, the router before them, and what comes next."""

    def __init__(self, policy: RoutePolicy, seed: int) -> None:
        self.rng = random.Random(seed)
        self.workers = {str(number): Worker() for number in range(NUM_REPLICAS)}
        self.router = Router(tuple(self.workers), policy)
        self.arrived: dict[str, float] = {}
        # When, order, worker ("" for an arrival), request.
        self.events: list[tuple[float, int, str, str]] = []
        self.order = 0
        self.shared = self.warm = 0
        self.worst = 0.0
        self.latencies: list[float] = []

    def run(self, count: int) -> Result:
        """That many requests, to the end of the last one."""
        at = 0.0
        for number in range(count):
            at += self.rng.expovariate(0.7 * NUM_REPLICAS * SLOTS / SERVICE_S)
            self.plan(at, "", f"r{number}")
        while self.events:
            now, _, name, request_id = heapq.heappop(self.events)
            if name:
                self.end(name, request_id, now)
            else:
                self.arrive(request_id, now)
        return Result(self.latencies, self.worst, self.warm / self.shared)

    def plan(self, at: float, name: str, request_id: str) -> None:
        """Something happens then."""
        self.order += 1
        heapq.heappush(self.events, (at, self.order, name, request_id))

    def report(self, name: str, now: float, event: Started | Finished) -> None:
        """A worker tells its router."""
        status = self.workers[name].status()
        self.router.told(name, StepReport(events=(event,), status=status), Seconds(now))

    def fill(self, name: str, now: float) -> None:
        """A worker takes what waits, as far as it has room."""
        worker = self.workers[name]
        while worker.running < SLOTS and worker.waiting:
            request_id, _ = worker.waiting.pop(0)
            worker.running += 1
            self.plan(now + SERVICE_S, name, request_id)
            self.report(name, now, Started(request_id=request_id, at=Seconds(now), cached_tokens=0))

    def end(self, name: str, request_id: str, now: float) -> None:
        """A request has been answered."""
        self.workers[name].running -= 1
        self.workers[name].generated += 64
        self.latencies.append(now - self.arrived[request_id])
        usage = Usage(prompt_tokens=1, completion_tokens=64)
        end = Finished(request_id=request_id, reason=FinishReason.LENGTH, usage=usage)
        self.report(name, now, end)
        self.fill(name, now)

    def arrive(self, request_id: str, now: float) -> None:
        """A request comes, four of five with the shared prefix."""
        own = self.rng.randrange(10**6)
        is_shared = self.rng.random() < 0.8
        prompt = (*SHARED, own) if is_shared else tuple(own + each for each in range(1000))
        sampling = Sampling(max_tokens=64, seed=0)
        request = EngineRequest(id=request_id, prompt=prompt, sampling=sampling)
        choice = self.router.choose(tuple(self.workers), request, Seconds(now))
        assert choice is not None
        self.router.sent(choice, request_id, request)
        worker = self.workers[choice.id]
        if is_shared:
            self.shared += 1
            self.warm += worker.warm
            worker.warm = True
        self.arrived[request_id] = now
        worker.waiting.append((request_id, len(prompt)))
        self.fill(choice.id, now)
        queues = [len(each.waiting) + each.running for each in self.workers.values()]
        mean = sum(queues) / len(queues)
        if mean > 1.0:
            self.worst = max(self.worst, max(queues) / mean)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.spec("B5")
@pytest.mark.parametrize("seed", range(12))
def test_gateway_health_04_a_popular_prefix_does_not_fill_one_replica(seed: int) -> None:
    least = Pool(LeastWork(), seed).run(400)
    affine = Pool(PrefixAffinity("m", 10_000), seed).run(400)
    assert len(affine.latencies) == 400
    assert affine.worst_queue <= 3.0
    assert p95(affine.latencies) <= 1.5 * p95(least.latencies)
    assert affine.warm_share >= 0.6
