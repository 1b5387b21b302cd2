"""The CPU engine in this process, without a server around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headway.app.replica import kernels_below
from headway.app.settings import Settings
from headway.app.wall_loop import WallLoop, WallRuns
from headway.compute.cpu import kernel_cache
from headway.core.base.model_card import ModelCard
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.executor import Executor
from headway.core.messages.health import LoadProgress, ReplicaHello
from headway.core.sim.clients import Clients, Recorder
from headway.core.sim.gate import Gate
from headway.core.sim.replica import LoopReplica, StepTotals
from headway.core.sim.report import Record
from headway.core.sim.workload import Workload
from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import Launch, ReplicaSpec


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
    console = ConsoleProgress()
    cache = Path(settings.cache_dir) if settings.cache_dir else None
    try:
        model_file = open_model(settings.model or fetch_builtin(console, cache))
        folder = kernel_cache.prepare(kernels_below(settings.cache_dir))
        # Imported here: kernels take their cache folder when they are imported.
        from headway.app.cpu_replica import load_cpu

        def show(progress: LoadProgress) -> None:
            if progress.stage == "weights":
                console("loading the weights", progress.done, progress.total)

        spec = ReplicaSpec(
            model_path=model_file.path,
            card=model_file.card,
            engine=settings.engine,
            threads=settings.executor.threads,
        )
        launch = Launch(spec=spec, commands_address="", reports_address="")
        found = load_cpu(launch, show, SystemClock())
        kernel_cache.seal(folder)
    finally:
        console.close()
    core = found.engine
    assert isinstance(core, EngineCore), "load_cpu() makes an EngineCore"
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
