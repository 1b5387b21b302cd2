"""Models that cannot be served: the program says why in one line, and ends."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import SLOWNESS
from tests.unit.service.loaders.folder_samples import write_folder

SHARD = "model-00002-of-00002.safetensors"


def without_a_shard(folder: Path) -> Path:
    (write_folder(folder) / SHARD).unlink()
    return folder


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def called_a_file(folder: Path) -> Path:
    return empty(folder.with_name("x.safetensors"))


def with_a_shard_that_lacks_a_tensor(folder: Path) -> Path:
    write_folder(folder)
    (folder / SHARD).write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (without_a_shard, SHARD),
        (empty, "config.json"),
        (called_a_file, "x.safetensors"),
        (with_a_shard_that_lacks_a_tensor, "model.layers.1."),
    ],
)
def test_weights_loading_03_what_is_missing_is_named_before_the_port_answers(
    make: Callable[[Path], Path], named: str, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "headway.app.cli", "serve", "--port", str(port),
         "--model", str(make(tmp_path / "m"))],
        capture_output=True, text=True, timeout=120 * SLOWNESS, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert time.monotonic() - began < 5 * SLOWNESS
    assert named in found.stderr.splitlines()[-1]
    assert "is ready" not in found.stdout
