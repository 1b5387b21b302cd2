"""Where compiled kernels are kept between starts.

Numba's cache knows a function again by its own source file only; a change in another file
would go unnoticed, and machine code of another CPU would be run. So each state of all the
kernels' sources, libraries and CPU has a folder of its own. Nobody else may write to it:
what lies there is executed.

This module imports no kernel, and must have run before any is imported.
"""

import logging
import os
import tempfile
from hashlib import blake2b
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
MODE = 0o700


def name() -> str:
    """The folder's name: a hash of all that compiled code depends on."""
    state = blake2b(digest_size=12)
    for part in (numba.__version__, llvmlite.__version__, llvm.get_host_cpu_name()):
        state.update(part.encode() + b"\0")
    features = sorted(feature for feature, has in llvm.get_host_cpu_features().items() if has)
    state.update(",".join(features).encode())
    for path in sorted(SOURCES.glob("*.py")):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def prepare(base: Path) -> Path:
    """Make Numba keep compiled kernels in a folder below `base`; returns that folder.

    Where it cannot be made, or belongs to somebody else, a temporary one serves this
    process, with a log line: kernels are then compiled anew at each start.
    """
    folder = base / name()
    try:
        folder.mkdir(mode=MODE, parents=True, exist_ok=True)
        if (problem := _problem_with(folder)) is not None:
            raise PermissionError(problem)
    except OSError as error:
        log.warning("kernel_cache_unusable", extra={"folder": str(folder), "reason": str(error)})
        folder = Path(tempfile.mkdtemp(prefix="headway-kernels-"))
    numba.config.CACHE_DIR = str(folder)
    return folder


def is_empty(folder: Path) -> bool:
    """True before the first start with these kernels: they will be compiled."""
    return not any(folder.iterdir())


def _problem_with(folder: Path) -> str | None:
    found = folder.stat()
    if found.st_uid != os.getuid():
        return f"owned by user {found.st_uid}"
    if found.st_mode & 0o022:
        return f"writable by others (mode {found.st_mode & 0o777:o})"
    return None if os.access(folder, os.W_OK) else "not writable"
