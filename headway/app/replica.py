"""The engine's process: `headway serve` starts it, and it ends with its server.

It needs its launch on standard input, so nobody starts it by hand.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import platformdirs

from headway.app.settle import give_back
from headway.compute.cpu import features, kernel_cache
from headway.compute.cpu.settings import AUTO, isa_of
from headway.core.base.errors import BadFrame, ExecutorUnsuitable, InvalidSetting, StartError
from headway.core.messages.health import LoadProgress
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.replica.server import EXIT_START_FAILED, Loaded, serve
from headway.service.wire.spec import Launch, ReplicaSpec, read_launch

STDIN = 0
CPU_LANES = 16  # the CPU executor's blocks are a multiple of this
# Settings of the CPU executor alone, by their names in the spec; torch leaves them at "auto".
CPU_ONLY = {"cpu_isa": "--cpu-isa", "kv_cache_dtype": "--kv-cache-dtype"}

logger = logging.getLogger(__name__)


def load(launch: Launch, progress: Callable[[LoadProgress], None]) -> Loaded:
    """Load the model into the executor that fits; raises StartError."""
    spec = launch.spec
    if wants_torch(spec):
        refuse_cpu_only(spec)
        return _load_with_torch(launch, progress)
    try:
        return _load_with_numba(launch, progress)
    except ExecutorUnsuitable as error:
        if spec.executor != AUTO or cpu_only(spec):
            raise
        logger.warning("torch_instead_of_cpu_kernels", extra={"reason": error.message})
        return _load_with_torch(launch, progress)


def wants_torch(spec: ReplicaSpec) -> bool:
    """Whether the settings ask for torch; raises InvalidSetting when they contradict.

    Unless it is named, the CPU executor serves on CPUs, where nobody asked for a type of
    numbers that it does not compute with, or for blocks that its vectors do not fit.
    """
    fits = spec.device == "cpu" and spec.dtype == AUTO
    if spec.executor == "cpu" and not fits:
        raise InvalidSetting(
            "--executor",
            f"cpu computes on CPUs, with the weights as the file has them; it does not go with "
            f"--device {spec.device} --dtype {spec.dtype}; leave those out, or use torch",
        )
    if spec.executor == AUTO:
        return not (fits and spec.engine.block_size % CPU_LANES == 0)
    return spec.executor == "torch"


def cpu_only(spec: ReplicaSpec) -> dict[str, str]:
    """What was asked of the CPU executor alone: flags and their values."""
    asked = {flag: str(getattr(spec, name)) for name, flag in CPU_ONLY.items()}
    return {flag: value for flag, value in asked.items() if value != AUTO}


def refuse_cpu_only(spec: ReplicaSpec) -> None:
    """Raise InvalidSetting for the first option that torch cannot follow."""
    for flag, value in cpu_only(spec).items():
        raise InvalidSetting(
            flag,
            f"{value} is for the CPU executor, but --executor, --dtype, --device or --block-size "
            "ask for torch; leave one of them out",
        )


def kernels_below(cache_dir: str | None) -> Path:
    """Where compiled kernels are kept: below the given folder, or the user's cache."""
    base = Path(cache_dir) if cache_dir else platformdirs.user_cache_path("headway")
    return base / "kernels"


def _load_with_torch(launch: Launch, progress: Callable[[LoadProgress], None]) -> Loaded:
    try:
        # Imported here: it brings torch, an optional dependency, and takes seconds in which
        # the server wants to hear that we live.
        from headway.app.torch_replica import load_torch
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] == "headway":
            raise
        raise StartError(
            f"the engine needs {error.name}, which cannot be imported; "
            f"install it with: pip install 'headway[torch]'"
        ) from error
    return load_torch(launch, progress, SystemClock())


def _load_with_numba(launch: Launch, progress: Callable[[LoadProgress], None]) -> Loaded:
    spec = launch.spec
    features.restrict(isa_of(spec.cpu_isa))
    folder = kernel_cache.prepare(kernels_below(spec.cache_dir))
    if kernel_cache.is_empty(folder):
        progress(LoadProgress(stage="kernels", done=0, total=1))
    # Imported here: kernels take their cache folder when they are imported.
    from headway.app.cpu_replica import load_cpu

    found = load_cpu(launch, progress, SystemClock())
    kernel_cache.seal(folder)
    give_back()
    return found


def main() -> int:
    """Serve until told to stop; the exit code (see service.replica.server)."""
    try:
        launch = read_launch(STDIN)
    except BadFrame as error:
        print(
            f"headway.app.replica is started by `headway serve`, not by hand: {error.message}",
            file=sys.stderr,
        )
        return EXIT_START_FAILED
    log.configure(launch.spec.log_level, as_json=launch.spec.log_json)
    return serve(launch, load, SystemClock(), STDIN)


if __name__ == "__main__":
    sys.exit(main())
