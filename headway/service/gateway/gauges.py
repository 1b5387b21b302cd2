"""Metrics computed at scrape time from what is known of the engine and the queue."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headway.core.base import metrics
from headway.core.base.metrics import RATE_WINDOW_S
from headway.core.base.units import Seconds
from headway.core.fleet.metrics import (
    MODEL_LOAD_SECONDS,
    MODEL_LOADS,
    MODEL_UNLOADS,
    MODEL_WAITING,
)
from headway.core.messages.health import ReplicaStatus
from headway.core.route.admit import Admitter
from headway.core.tenancy.metrics import CLASS_PREEMPTED
from headway.core.tenancy.tenant import SloClass
from headway.service.gateway.meter import Meter
from headway.service.observe.prometheus import Sample
from headway.service.wire.transport import Pool, ReplicaState, ReplicaView

SAMPLE_S = 1.0  # the shortest time between two samples of the window
TOTALS: Mapping[str, tuple[metrics.Metric, ...]] = {
    "num_steps": (metrics.ENGINE_STEPS,),
    "computed_prompt_tokens": (metrics.ENGINE_COMPUTED,),
    "generated_tokens": (metrics.ENGINE_TOKENS,),
    "prefix_queries": (metrics.VLLM_PREFIX_QUERIES,),
    "prefix_hits": (metrics.VLLM_PREFIX_HITS,),
    "prefix_host_hits": (metrics.PREFIX_HOST_HITS,),
    "swapped_out_blocks": (metrics.SWAPPED_OUT,),
    "swapped_in_blocks": (metrics.SWAPPED_IN,),
    "preemptions_swapped": (metrics.SWAP_PREEMPTIONS,),
    "preemptions": (metrics.PREEMPTIONS, metrics.VLLM_PREEMPTIONS),
    "preemptions_for_class": (metrics.CLASS_PREEMPTIONS,),
    "wasted_rows": (metrics.ENGINE_WASTED,),
}
# Preemptions by class: their key among the totals -> field of the status, class, kind.
_CLASSED: Mapping[str, tuple[str, SloClass, str]] = {
    f"{name}/{each.name}": (name, each, kind)
    for name, kind in (("swapped_by_class", "swap"), ("recomputed_by_class", "recompute"))
    for each in SloClass
}


class _Sampled(NamedTuple):
    """The engine's totals at one moment, and the sequences of all steps so far."""

    at: Seconds
    totals: Mapping[str, int]
    rows: int


class EngineTotals:
    """The engine's totals, kept growing over its restarts, and a window of their past."""

    def __init__(self) -> None:
        self._lost: Counter[str] = Counter()  # by processes that have ended
        self._last: Counter[str] = Counter()
        self._process = (0, 0)  # loads and restarts before it
        self._rows = 0  # sequences in all steps so far
        self._window: deque[_Sampled] = deque()

    @property
    def totals(self) -> dict[str, int]:
        """What all processes of the engine have counted so far."""
        return {name: self._lost[name] + self._last[name] for name in (*TOTALS, *_CLASSED)}

    def observe(self, view: ReplicaView, now: Seconds) -> None:
        """Take the engine's latest status, if it has one.

        Called at every step, sizes of steps are exact; called less often, the steps in
        between are taken to be as large as the last one.
        """
        status = view.status
        if status is None:
            return
        fresh = Counter({name: int(getattr(status, name)) for name in TOTALS})
        for key, (name, slo_class, _) in _CLASSED.items():
            fresh[key] = sum(getattr(status, name)[slo_class : slo_class + 1])
        if (view.loads, view.restarts) != self._process:
            self._process = (view.loads, view.restarts)
            self._lost, self._last = Counter(self.totals), Counter()
        self._rows += status.last_step_rows * (fresh["num_steps"] - self._last["num_steps"])
        self._last = fresh
        if not self._window or now - self._window[-1].at >= SAMPLE_S:
            self._window.append(_Sampled(now, self.totals, self._rows))
        while len(self._window) > 2 and self._window[1].at <= now - RATE_WINDOW_S:
            self._window.popleft()

    def grown(self, name: str) -> int:
        """By how much a total grew inside the window."""
        return self.totals[name] - self._window[0].totals[name] if self._window else 0

    def rate(self, name: str, now: Seconds) -> float:
        """Growth a second inside the window."""
        if not self._window or now <= self._window[0].at:
            return 0.0
        return self.grown(name) / max(now - self._window[0].at, SAMPLE_S)

    def mean_step_rows(self) -> float:
        """Mean number of sequences in a step inside the window."""
        steps = self.grown("num_steps")
        return (self._rows - self._window[0].rows) / steps if steps else 0.0


class Gauges:
    """A source of samples for the exporter; `tick` it about once a second.

    `totals` may also be told of every step by whoever gets the engine's reports.
    """

    def __init__(
        self,
        pool: Pool,
        admitter: Admitter,
        meter: Meter,
        totals: EngineTotals,
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
        if view.status is not None:
            yield from self._engine(view.status)
        if view.hello is not None:
            labels = {
                "block_size": str(view.hello.block_size),
                "num_gpu_blocks": str(view.hello.num_blocks),
                "cache_dtype": view.hello.dtype,
                "enable_prefix_caching": str(self._has_prefix_cache),
            }
            yield Sample(metrics.VLLM_CACHE_CONFIG, 1.0, labels)
        totals = self._totals.totals
        for name, its_metrics in TOTALS.items():
            for metric in its_metrics:
                yield Sample(metric, totals[name])
        for key, (_, slo_class, kind) in _CLASSED.items():
            labels = {"slo_class": slo_class.name.lower(), "kind": kind}
            yield Sample(CLASS_PREEMPTED, totals[key], labels)

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

    def _engine(self, status: ReplicaStatus) -> Iterator[Sample]:
        totals, now = self._totals, self._meter.clock.now()
        queries = totals.grown("prefix_queries")
        used = status.total_blocks - status.free_blocks - status.cached_blocks
        yield Sample(metrics.VLLM_RUNNING, status.num_running)
        yield Sample(metrics.VLLM_WAITING, status.num_waiting)
        yield Sample(metrics.VLLM_KV_USAGE, _share(used, status.total_blocks))
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


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
