"""Metrics computed at scrape time from what is known of the engine and the queue."""

from collections.abc import Iterator

from headway.core.base import metrics
from headway.core.fleet.metrics import (
    MODEL_LOAD_SECONDS,
    MODEL_LOADS,
    MODEL_UNLOADS,
    MODEL_WAITING,
)
from headway.core.messages.health import ReplicaStatus
from headway.core.route import metrics as route_metrics
from headway.core.route.admit import Admitter
from headway.core.route.policy import LOAD, PREFIX
from headway.core.route.router import RouteCounts
from headway.core.tenancy.metrics import CLASS_PREEMPTED
from headway.core.tenancy.tenant import SloClass
from headway.service.gateway.meter import Meter
from headway.service.gateway.totals import CLASSED, TOTALS, PoolTotals
from headway.service.observe.prometheus import Sample
from headway.service.wire.transport import MemberView, Pool, ReplicaState, ReplicaView


class Gauges:
    """A source of samples for the exporter; `tick` it about once a second.

    `totals` may also be told of every step by whoever gets the engine's reports.
    """

    def __init__(
        self,
        pool: Pool,
        admitter: Admitter,
        meter: Meter,
        totals: PoolTotals,
        *,
        has_prefix_cache: bool,
    ) -> None:
        self._pool = pool
        self._admitter = admitter
        self._meter = meter
        self._totals = totals
        self._has_prefix_cache = has_prefix_cache

    def tick(self) -> None:
        """Sample the engine, so that rates are right also between scrapes."""
        self._totals.observe(self._pool.view(), self._meter.clock.now())

    def samples(self) -> Iterator[Sample]:
        """All values, as of now."""
        self.tick()
        yield from self._queue()
        yield from self._residency()
        view = self._pool.view()
        yield Sample(metrics.ENGINE_READY, float(view.state is ReplicaState.READY))
        yield Sample(metrics.ENGINE_RESTARTS, view.restarts)
        yield Sample(route_metrics.LOAD_BALANCE_SKEW, self._totals.skew())
        if view.status is not None:
            yield from self._pool_of(view.status)
        for number, own in enumerate([each.view for each in view.members] or [view]):
            yield from self._engine(str(number), own)
        for member in view.members:
            yield from _member(member)
        if view.routed is not None:
            yield from _routed(view.routed)
        yield from self._counted()

    def _counted(self) -> Iterator[Sample]:
        """Totals: of each engine where the metric tells them apart, else of all."""
        each = [engine.totals for engine in self._totals.engines]
        together = self._totals.totals
        for key, (_, slo_class, kind) in CLASSED.items():
            labels = {"slo_class": slo_class.name.lower(), "kind": kind}
            yield Sample(CLASS_PREEMPTED, together[key], labels)
        for name, its_metrics in TOTALS.items():
            for metric in its_metrics:
                if metric.labels != metrics.VLLM:
                    yield Sample(metric, together[name])
                    continue
                for number, totals in enumerate(each):
                    yield Sample(metric, totals[name], {"engine": str(number)})

    def _queue(self) -> Iterator[Sample]:
        yield Sample(metrics.QUEUE_LENGTH, self._admitter.num_waiting)
        yield Sample(metrics.WAITING_TOKENS, self._admitter.waiting_tokens)
        yield Sample(metrics.IN_FLIGHT, self._meter.num_open)
        yield Sample(metrics.QUEUE_LIMIT_CHOICES, self._admitter.limits.max_choices)
        yield Sample(metrics.QUEUE_LIMIT_TOKENS, self._admitter.limits.max_waiting_tokens)

    def _residency(self) -> Iterator[Sample]:
        residency = self._pool.residency()
        counts = residency.counts
        yield Sample(MODEL_LOADS, counts.loads, {"outcome": "ok"})
        yield Sample(MODEL_LOADS, counts.failed_loads, {"outcome": "failed"})
        yield Sample(MODEL_UNLOADS, counts.unloads)
        yield Sample(MODEL_WAITING, residency.num_waiting)
        if counts.last_load_s is not None:
            yield Sample(MODEL_LOAD_SECONDS, counts.last_load_s)

    def _engine(self, number: str, view: ReplicaView) -> Iterator[Sample]:
        """What is told of each replica by itself."""
        engine = {"engine": number}
        if (status := view.status) is not None:
            used = status.total_blocks - status.free_blocks - status.cached_blocks
            yield Sample(metrics.VLLM_RUNNING, status.num_running, engine)
            yield Sample(metrics.VLLM_WAITING, status.num_waiting, engine)
            yield Sample(metrics.VLLM_KV_USAGE, _share(used, status.total_blocks), engine)
        if view.hello is not None:
            labels = {
                "block_size": str(view.hello.block_size),
                "num_gpu_blocks": str(view.hello.num_blocks),
                "cache_dtype": view.hello.dtype,
                "enable_prefix_caching": str(self._has_prefix_cache),
            }
            yield Sample(metrics.VLLM_CACHE_CONFIG, 1.0, labels | engine)

    def _pool_of(self, status: ReplicaStatus) -> Iterator[Sample]:
        """What is told of all replicas together."""
        totals, now = self._totals, self._meter.clock.now()
        queries = totals.grown("prefix_queries")
        yield Sample(metrics.HOST_BLOCKS_USED, status.host_blocks_used)
        yield Sample(metrics.HOST_BLOCKS_TOTAL, status.host_blocks_total)
        yield Sample(metrics.MEMORY_UTILIZATION, _share(status.memory_used, status.memory_budget))
        yield Sample(metrics.KV_CACHE_HIT_RATE, _share(totals.grown("prefix_hits"), queries))
        yield Sample(metrics.GENERATION_THROUGHPUT, totals.rate("generated_tokens", now))
        yield Sample(metrics.BATCH_SIZE_AVG, totals.mean_step_rows())
        yield Sample(metrics.PRESSURE_RUNG, status.rung)
        yield Sample(metrics.PREFILL_RATE, status.prefill_rate)
        yield Sample(metrics.BEST_EFFORT_WAIT, status.best_effort_wait_s)
        for slo_class, waiting in zip(SloClass, status.waiting_by_class, strict=False):
            labels = {"slo_class": slo_class.name.lower()}
            yield Sample(metrics.WAITING_BY_CLASS, waiting, labels)


def _member(member: MemberView) -> Iterator[Sample]:
    labels, view = {"engine": member.id}, member.view
    yield Sample(route_metrics.REPLICA_READY, float(view.state is ReplicaState.READY), labels)
    yield Sample(route_metrics.REPLICA_EJECTED, float(member.is_ejected), labels)
    yield Sample(route_metrics.REPLICA_RESTARTS, view.restarts, labels)
    yield Sample(route_metrics.REPLICA_IN_FLIGHT, member.in_flight, labels)
    yield Sample(route_metrics.REPLICA_WORK, member.work_s, labels)


def _routed(counts: RouteCounts) -> Iterator[Sample]:
    yield Sample(route_metrics.ROUTED, counts.by_load, {"reason": LOAD})
    yield Sample(route_metrics.ROUTED, counts.by_prefix, {"reason": PREFIX})
    yield Sample(route_metrics.RETRIED, counts.retried)
    yield Sample(route_metrics.CONTINUED, counts.continued)
    yield Sample(route_metrics.BROKEN, counts.broken)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
