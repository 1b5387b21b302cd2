"""The engine that `headway serve` would run, in this process: workloads over real time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headway.app.bench_model import load_here, open_here
from headway.app.settings import Settings
from headway.app.wall_loop import WallLoop, WallRuns
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.messages.health import ReplicaHello
from headway.core.sim.clients import Clients, Recorder
from headway.core.sim.gate import Gate
from headway.core.sim.replica import LoopReplica, StepTotals
from headway.core.sim.report import Record
from headway.core.sim.workload import Workload

QUEUE = (100_000, 1 << 40)  # requests and tokens: a benchmark's own queue is never refused


class LocalEngine(NamedTuple):
    """A loaded engine; its core serves one run after the other."""

    core: EngineCore
    executor: Executor
    hello: ReplicaHello
    card: ModelCard
    bytes_per_kv_value: int


StepSeen = Callable[[WallLoop, WallRuns, Seconds], None]


@contextmanager
def local_engine(settings: Settings) -> Iterator[LocalEngine]:
    """Load a model as `headway serve` would; raises StartError."""
    model_file = open_here(settings)
    found = load_here(settings, model_file, QUEUE)
    core = found.engine
    assert isinstance(core, EngineCore), "every executor is driven by an EngineCore"
    per_value = found.block_bytes // core.settings.block_size
    try:
        yield LocalEngine(
            core,
            found.executor,
            found.hello,
            model_file.card,
            per_value // model_file.card.kv_bytes_per_token(1),
        )
    finally:
        found.executor.close()


def run_locally(
    engine: LocalEngine,
    workload: Workload,
    *,
    gate: Gate | None = None,
    on_end: Callable[[], object] | None = None,
    on_step: StepSeen | None = None,
) -> tuple[list[Record], StepTotals]:
    """Run a workload to its end over real time; one record a request."""
    loop, recorder = WallLoop(), Recorder()
    runs = WallRuns(engine.executor, loop)

    def probe(core: EngineCore, took: Seconds) -> None:
        if on_step is not None:
            on_step(loop, runs, took)

    replica = LoopReplica(engine.core, runs, loop, recorder, probe=probe)
    if on_end is not None:
        recorder.on_end(lambda request_id, now: on_end())
    Clients(workload, loop, replica, recorder, gate).start()
    loop.run()
    return list(recorder.records.values()), replica.totals
