"""Where an overload goes: to a server over HTTP, or to a simulated replica."""

import argparse
import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import httpx

from headway.app.bench_client import make_http
from headway.app.bench_options import LOOPBACK
from headway.app.bench_overload_client import Sender, Wire, counters, model_of, send_workload
from headway.app.bench_show import progress
from headway.app.option_flags import flags_of
from headway.app.served import Served, resident_bytes
from headway.core.base.errors import StartError
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.health import ReplicaStatus
from headway.core.sim.costs import StepCost
from headway.core.sim.report import Record, Summary, summarize
from headway.core.sim.run import simulate
from headway.core.sim.workload import Workload
from headway.core.tenancy.metrics import CLASS_PREEMPTED
from headway.core.tenancy.tenant import SloClass

SAMPLE_S = 1.0
LABEL = re.compile(r'(\w+)="([^"]*)"')
SET_HERE = frozenset({"seed", "log_level"})  # keys of options that are not handed on


@dataclass(frozen=True, slots=True)
class Phase:
    """One load and what came of it.

    `counters` are what the server counted meanwhile; `resident` its memory every second.
    """

    name: str
    load: float  # of the capacity
    records: list[Record]
    counters: dict[str, float] = field(default_factory=dict)
    resident: list[int] = field(default_factory=list)

    def summary(self, targets: Mapping[str, float]) -> Summary:
        """The clients' figures."""
        return summarize(self.records, targets)


class Site(Protocol):
    """Takes one workload after the other."""

    @property
    def what(self) -> str:
        """For people."""
        ...

    def run(self, name: str, load: float, workload: Workload) -> Phase:
        """Run a workload to its end."""
        ...


class SimSite:
    """A new simulated replica for each phase."""

    def __init__(
        self, engine: ResolvedEngine, cost: StepCost, model: str, args: argparse.Namespace
    ) -> None:
        self._engine = engine
        self._cost = cost
        self._args = args
        self.what = f"{model}, simulated"

    def run(self, name: str, load: float, workload: Workload) -> Phase:
        """Run it under the simulated clock."""
        with progress(self._args, len(workload.requests), name) as bar:
            result = simulate(workload, self._engine, self._cost)
            bar.update(len(result.records))
        return Phase(name, load, result.records, preemptions(result.status))


def preemptions(status: ReplicaStatus) -> dict[str, float]:
    """The engine's own counts of preemptions, under the names that a server's have."""
    kinds = {"swap": status.swapped_by_class, "recompute": status.recomputed_by_class}
    return {
        f'{CLASS_PREEMPTED.name}{{kind="{kind}",slo_class="{each.name.lower()}"}}': float(number)
        for kind, numbers in kinds.items()
        for each, number in zip(SloClass, numbers, strict=False)
    }


def by_kind(counters: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Sequences preempted, by class and kind, of a phase's counters; those that there are."""
    found: dict[str, dict[str, int]] = {}
    for series, value in counters.items():
        labels = dict(LABEL.findall(series))
        if series.startswith(CLASS_PREEMPTED.name + "{") and value:
            kinds = found.setdefault(labels["slo_class"], {})
            kinds[labels["kind"]] = kinds.get(labels["kind"], 0) + int(value)
    return found


class HttpSite:
    """A server, the same for all phases."""

    def __init__(self, served: Served, keys: Mapping[str, str], args: argparse.Namespace) -> None:
        self._served = served
        self._args = args
        self._headers = {}
        if keys:
            self._headers = {"Authorization": f"Bearer {next(iter(keys.values()))}"}
        model = self._ask_model()
        self._wire = Wire(base_url=served.base_url, model=model, keys=keys)
        self.what = f"{model} at {served.base_url}"

    def run(self, name: str, load: float, workload: Workload) -> Phase:
        """Send it and read every answer to its end."""
        before = self._counters()
        with progress(self._args, len(workload.requests), name) as bar:
            records, resident = asyncio.run(self._send(workload, partial(bar.update, 1)))
        after = self._counters()
        counted = {key: value - before.get(key, 0.0) for key, value in after.items()}
        return Phase(name, load, records, counted, resident)

    async def _send(
        self, workload: Workload, on_end: partial[bool | None]
    ) -> tuple[list[Record], list[int]]:
        resident: list[int] = []

        async def sample(pid: int) -> None:
            while True:
                resident.append(resident_bytes(pid))
                await asyncio.sleep(SAMPLE_S)

        host = httpx.URL(self._served.base_url).host
        async with make_http(host in LOOPBACK) as http:
            pid = self._served.pid
            sampler = None if pid is None else asyncio.create_task(sample(pid))
            try:
                sender = Sender(http, self._wire)
                return await send_workload(sender, workload, time.perf_counter, on_end), resident
            finally:
                if sampler is not None:
                    sampler.cancel()

    def _ask_model(self) -> str:
        url = self._served.base_url + "/v1/models"
        try:
            response = httpx.get(url, headers=self._headers, timeout=30.0, trust_env=False)
            return model_of(response.raise_for_status().json())
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise StartError(f"no server answers at {url}: {error}") from error

    def _counters(self) -> dict[str, float]:
        url = self._served.base_url + "/metrics"
        try:
            return counters(httpx.get(url, timeout=30.0, trust_env=False).text, "preempt")
        except httpx.HTTPError:
            return {}  # not ours, or its metrics are elsewhere


def start_options(
    args: argparse.Namespace, classes: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Options of `headway serve` for the engine that was asked for, and a key for each class."""
    options = ["--log-level", "warning", *flags_of(vars(args), SET_HERE)]
    keys = {name: f"bench-{name}" for name in classes}
    return [*options, "--tenant", *(f"{name}:{name}:{key}" for name, key in keys.items())], keys
