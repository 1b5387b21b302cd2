"""The totals of a model's engines, kept growing over their restarts, and a window of their past."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headway.core.base import metrics
from headway.core.base.metrics import RATE_WINDOW_S
from headway.core.base.units import Seconds
from headway.core.tenancy.tenant import SloClass
from headway.service.wire.transport import ReplicaView

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
CLASSED: Mapping[str, tuple[str, SloClass, str]] = {
    f"{name}/{each.name}": (name, each, kind)
    for name, kind in (("swapped_by_class", "swap"), ("recomputed_by_class", "recompute"))
    for each in SloClass
}
NAMES = (*TOTALS, *CLASSED)
WORK = ("computed_prompt_tokens", "generated_tokens")


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
        return {name: self._lost[name] + self._last[name] for name in NAMES}

    def observe(self, view: ReplicaView, now: Seconds) -> None:
        """Take the engine's latest status, if it has one.

        Called at every step, sizes of steps are exact; called less often, the steps in
        between are taken to be as large as the last one.
        """
        status = view.status
        if status is None:
            return
        fresh = Counter({name: int(getattr(status, name)) for name in TOTALS})
        for key, (name, slo_class, _) in CLASSED.items():
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


class PoolTotals:
    """The totals of every replica of a pool, by its place in it, and of all together."""

    def __init__(self) -> None:
        self.engines: list[EngineTotals] = []

    @property
    def totals(self) -> dict[str, int]:
        """What all of them have counted so far."""
        each = [engine.totals for engine in self.engines]
        return {name: sum(totals[name] for totals in each) for name in NAMES}

    def observe(self, view: ReplicaView, now: Seconds) -> None:
        """Take the latest status of each; see EngineTotals."""
        views = [member.view for member in view.members] or [view]
        while len(self.engines) < len(views):
            self.engines.append(EngineTotals())
        for engine, own in zip(self.engines, views, strict=False):
            # Loads are counted by the pool, for all of its replicas at once.
            engine.observe(msgspec.structs.replace(own, loads=view.loads), now)

    def grown(self, name: str) -> int:
        """By how much a total grew inside the window."""
        return sum(engine.grown(name) for engine in self.engines)

    def rate(self, name: str, now: Seconds) -> float:
        """Growth a second inside the window."""
        return sum(engine.rate(name, now) for engine in self.engines)

    def mean_step_rows(self) -> float:
        """Mean number of sequences in a step of any of them inside the window."""
        steps = [engine.grown("num_steps") for engine in self.engines]
        rows = sum(
            engine.mean_step_rows() * count
            for engine, count in zip(self.engines, steps, strict=True)
        )
        return rows / sum(steps) if any(steps) else 0.0

    def skew(self) -> float:
        """Tokens of the busiest one inside the window over the mean of all, less 1."""
        tokens = [sum(engine.grown(name) for name in WORK) for engine in self.engines]
        return max(tokens) * len(tokens) / sum(tokens) - 1.0 if any(tokens) else 0.0
