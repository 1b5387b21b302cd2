"""Models that cannot be served: the program says why in one line, and ends."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.e2e.server import SLOWNESS
from tests.folder_models import served_folder
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


def with_a_template_that_loops(folder: Path) -> Path:
    write_folder(folder)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(loop)
    return folder


def with_a_tokenizer_of_another_model(folder: Path) -> Path:
    write_folder(folder)
    form = json.loads((folder / "tokenizer.json").read_text())
    form["added_tokens"].append({"id": 999_999, "content": "<more>", "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(form))
    return folder


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (without_a_shard, SHARD),
        (empty, "config.json"),
        (called_a_file, "x.safetensors"),
        (with_a_shard_that_lacks_a_tensor, "model.layers.1."),
        (with_a_template_that_loops, "m: its chat template loops"),
        (with_a_tokenizer_of_another_model, "tokenizer.json: gives token '<more>' the id 999999"),
    ],
)
def test_weights_loading_03_what_is_missing_is_named_before_the_port_answers(
    make: Callable[[Path], Path], named: str, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    found = serve(make(tmp_path / "m"), port)
    assert found.returncode == 2
    assert time.monotonic() - began < 30 * SLOWNESS
    assert named in found.stderr.splitlines()[-1]
    assert "is ready" not in found.stdout


def test_weights_loading_03_a_wrong_shape_is_named_by_its_file_and_its_tensor(
    tmp_path: Path,
) -> None:
    folder = Path(served_folder(tmp_path / "m"))
    name = "model.layers.1.mlp.down_proj.weight"
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    arrays = dict(load_file(folder / where))
    arrays[name] = arrays[name][:, :32].copy()
    save_file(arrays, folder / where)
    found = serve(folder, 0)
    assert found.returncode == 2
    last = found.stderr.splitlines()[-1]
    assert f"{folder / where}: tensor {name} has shape (64, 32), but the model needs (64, 96)" in (
        last
    )


def serve(model: Path, port: int) -> "subprocess.CompletedProcess[str]":
    """A server that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "headway.app.cli", "serve", "--port", str(port),
         "--model", str(model)],
        capture_output=True, text=True, timeout=120 * SLOWNESS, check=False,
    )  # fmt: skip
