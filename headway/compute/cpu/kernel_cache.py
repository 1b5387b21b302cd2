"""Where compiled kernels are kept between starts.

Numba's cache knows a function again by its own source file only; a change in another file
would go unnoticed, and machine code of another CPU would be run. So each state of all the
kernels' sources, libraries and CPU has a folder of its own. Nobody else may write to it:
what lies there is executed. Nor does Numba notice a damaged file before it fails on it, so
the checksums of all files stand beside them.

This module imports no kernel. `prepare` must have run before any is imported, and after
`features.restrict`, where that is called.
"""

import atexit
import json
import logging
import os
import pickletools
import re
import shutil
import struct
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import llvmlite
import numba

from headway.compute.cpu import features

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
MODE = 0o700
UNUSED_S = 30 * 24 * 3600.0
FOLDER_NAME = re.compile(r"[0-9a-f]{24}")  # as `name` makes them
SUMS = "sums.json"  # of each file in the folder
PICKLES = {".nbi": 2, ".nbc": 1}  # in Numba's indices and machine code


def name() -> str:
    """The folder's name: a hash of all that compiled code depends on."""
    state = blake2b(digest_size=12)
    for part in (numba.__version__, llvmlite.__version__, features.cpu_name()):
        state.update(part.encode() + b"\0")
    state.update(",".join(sorted(features.enabled())).encode())
    for path in sorted(SOURCES.glob("*.py")):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def prepare(base: Path) -> Path:
    """Make Numba keep compiled kernels in a folder below `base`; returns that folder.

    Where it cannot be made, or others may write to it, a temporary one serves this process,
    with a log line: kernels are then compiled anew at each start. Damaged files are removed,
    with a log line, and compiled again.
    """
    folder = base / name()
    try:
        folder.mkdir(mode=MODE, parents=True, exist_ok=True)
        if (problem := _problem_with(folder)) is not None:
            raise PermissionError(problem)
        _drop_damaged(folder)
        os.utime(folder)  # so that others see that it is in use
    except OSError as error:
        log.warning("kernel_cache_unusable", extra={"folder": str(folder), "reason": str(error)})
        folder = Path(tempfile.mkdtemp(prefix="headway-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    else:
        atexit.register(seal, folder)
        _drop_unused(base, folder, time.time())
    numba.config.CACHE_DIR = str(folder)
    return folder


def is_empty(folder: Path) -> bool:
    """True before the first start with these kernels: they will be compiled."""
    return next(_kept(folder), None) is None


def seal(folder: Path) -> None:
    """Note the checksums of what is there.

    Called after the kernels were compiled, and at the process' end for those that came later.
    """
    try:
        sums = {str(path.relative_to(folder)): _sum_of(path) for path in _kept(folder)}
        if sums == _read_sums(folder):
            return
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(sums, file)
        os.replace(file.name, folder / SUMS)
    except OSError as error:  # the folder is gone, or the disk full: the next start compiles
        log.warning("kernel_cache_not_kept", extra={"folder": str(folder), "reason": str(error)})


def _drop_unused(base: Path, own: Path, now: float) -> None:
    """Remove the folders of other versions that no start has used for long: 20 MB each."""
    for folder in base.iterdir():
        if folder == own or not FOLDER_NAME.fullmatch(folder.name):
            continue
        try:
            if now - folder.stat().st_mtime > UNUSED_S:
                shutil.rmtree(folder)
                log.info("kernel_cache_removed", extra={"folder": str(folder)})
        except OSError as error:  # somebody else's, or removed by another start
            log.debug("kernel_cache_kept", extra={"folder": str(folder), "reason": str(error)})


def _drop_damaged(folder: Path) -> None:
    """Remove files on which Numba would fail; it makes do with a missing one.

    A file without a checksum is of a process that was killed, or is compiling now. Numba puts
    whole files in place, so only a crash of the machine can have damaged it.
    """
    sums = _read_sums(folder)
    damaged = []
    for path in list(_kept(folder)):
        noted = sums.get(str(path.relative_to(folder)))
        is_whole = _holds_pickles(path) if noted is None else _sum_of(path) == noted
        if not is_whole:
            path.unlink(missing_ok=True)
            damaged.append(path.name)
    if damaged:
        log.warning(
            "kernel_cache_damaged", extra={"folder": str(folder), "removed": sorted(damaged)}
        )


def _kept(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in PICKLES)


def _holds_pickles(path: Path) -> bool:
    """Whether a file has the outer form of what Numba writes; nothing of it is executed."""
    try:
        with path.open("rb") as file:
            for _ in range(PICKLES[path.suffix]):
                deque(pickletools.genops(file), maxlen=0)
            return not file.read(1)
    except FileNotFoundError:
        return True
    except (ValueError, EOFError, IndexError, struct.error):
        return False


def _sum_of(path: Path) -> str | None:
    """None for a file that was removed meanwhile."""
    try:
        return blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return None


def _read_sums(folder: Path) -> dict[str, str | None]:
    """What `seal` wrote; nothing when that cannot be read."""
    try:
        found = json.loads((folder / SUMS).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _problem_with(folder: Path) -> str | None:
    found = folder.stat()
    if found.st_uid != os.getuid():
        return f"owned by user {found.st_uid}"
    if found.st_mode & 0o022:
        return f"writable by others (mode {found.st_mode & 0o777:o})"
    return None if os.access(folder, os.W_OK) else "not writable"
