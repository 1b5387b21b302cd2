"""`headway warmup`: compile the CPU executor's kernels before the first start needs them."""

import sys
import time
from pathlib import Path

from headway.app.model_source import locate
from headway.app.replica import kernels_below
from headway.app.settings import Settings
from headway.compute.cpu import features, kernel_cache
from headway.compute.cpu.settings import isa_of
from headway.core.base.errors import StartError
from headway.core.engine.settings import EngineSettings
from headway.core.messages.health import LoadProgress
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.wire.spec import Launch, ReplicaSpec

# One short sequence: what is compiled is the same for every number of them.
SMALLEST = EngineSettings(
    max_model_len=16, max_num_seqs=1, max_num_batched_tokens=16, kv_cache_memory_bytes=64 << 20
)


def warm_up(settings: Settings) -> int:
    """Load the model, do one step of it, and say where its kernels are; the exit code.

    Raises StartError when the model cannot be loaded or the kernels cannot be kept.
    """
    log.configure(settings.log_level, as_json=settings.log_json)
    console = ConsoleProgress()
    began = time.monotonic()
    cache = Path(settings.cache_dir) if settings.cache_dir else None
    model_file = open_model(locate(settings.model, console, cache).path)
    features.restrict(isa_of(settings.cpu.cpu_isa))
    base = kernels_below(settings.cache_dir)
    folder = kernel_cache.prepare(base)
    if folder.parent != base:
        raise StartError(f"compiled kernels cannot be kept below {base}; the log line says why")
    what = "loaded"
    if kernel_cache.is_empty(folder):
        what = "compiled"
        print("compiling the kernels", file=sys.stderr, flush=True)
    # Imported here: kernels take their cache folder when they are imported.
    from headway.app.cpu_replica import load_cpu

    def show(progress: LoadProgress) -> None:
        if progress.stage == "weights":
            console("loading the weights", progress.done, progress.total)

    spec = ReplicaSpec(
        model_path=model_file.path,
        card=model_file.card,
        engine=SMALLEST,
        threads=settings.executor.threads,
        cpu_isa=settings.cpu.cpu_isa,
        quantization=settings.cpu.quantization,
        kv_cache_dtype=settings.cpu.kv_cache_dtype,
    )
    try:
        launch = Launch(spec=spec, commands_address="", reports_address="")
        load_cpu(launch, show, SystemClock()).executor.close()
    finally:
        console.close()
    kernel_cache.seal(folder)
    print(f"kernels {what} in {time.monotonic() - began:.1f} s; they are in {folder}")
    return 0
