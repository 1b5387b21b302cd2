import atexit
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import llvmlite.binding as llvm
import numba
import pytest

from headway.compute.cpu import kernel_cache

# A process of its own, because kernels take their folder when they are imported.
FIRST_START = """
import logging, sys
from pathlib import Path
logging.basicConfig(format="%(message)s")
from headway.compute.cpu import kernel_cache
folder = kernel_cache.prepare(Path(sys.argv[1]))
was_empty = kernel_cache.is_empty(folder)
import numpy as np
from headway.compute.cpu.kvpool import store_bits
out = np.zeros(3, np.uint16)
store_bits(np.ones(3, np.float32), out)
assert out.tolist() == [0x3F80] * 3
hits = sum(store_bits.stats.cache_hits.values())
kernel_cache.seal(folder)
print(folder, was_empty, hits)
"""


class Start(subprocess.Popen[str]):
    """A process that compiles one kernel, or finds it in its folder."""

    def __init__(self, base: Path) -> None:
        super().__init__(
            [sys.executable, "-c", FIRST_START, str(base)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> tuple[Path, bool, int, str]:
        """Folder, whether it was empty, kernels found in it, and the log."""
        said, log = self.communicate(timeout=120)
        assert self.returncode == 0, log
        folder, was_empty, hits = said.split()
        return Path(folder), was_empty == "True", int(hits), log


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base folder in which the kernel has been compiled; tests take copies."""
    base = tmp_path_factory.mktemp("warm")
    folder, was_empty, hits, log = Start(base).ended()
    assert (was_empty, hits, log) == (True, 0, "")
    assert folder == base / kernel_cache.name()
    return base


@pytest.fixture(autouse=True)
def _same_folder_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `prepare` sets for the process must not outlive the test."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    monkeypatch.setattr(atexit, "register", lambda *args, **more: None)


def copied(warm: Path, to: Path) -> Path:
    subprocess.run(["cp", "-a", f"{warm}/.", str(to)], check=True)
    return to


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.message == event]


def test_the_folder_is_ours_alone_and_numba_uses_it(tmp_path: Path) -> None:
    folder = kernel_cache.prepare(tmp_path / "not" / "there")
    assert folder == tmp_path / "not" / "there" / kernel_cache.name()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()
    assert str(folder) == numba.config.CACHE_DIR
    assert kernel_cache.is_empty(folder)
    assert kernel_cache.prepare(tmp_path / "not" / "there") == folder


def test_another_source_version_or_cpu_is_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [kernel_cache.name()]
    with monkeypatch.context() as patch:
        patch.setattr(numba, "__version__", "0.0")
        names.append(kernel_cache.name())
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_name", lambda: "abacus")
        names.append(kernel_cache.name())
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_features", lambda: {"beads": True})
        names.append(kernel_cache.name())
    monkeypatch.setattr(kernel_cache, "SOURCES", tmp_path)
    for text in ("a = 1", "a = 2"):
        (tmp_path / "kernel.py").write_text(text)
        names.append(kernel_cache.name())
    (tmp_path / "kernel.py").rename(tmp_path / "renamed.py")
    names.append(kernel_cache.name())
    assert len(set(names)) == len(names)
    assert kernel_cache.name() == names[-1]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("group", "writable by others (mode 770)"),
        ("foreign", "owned by user "),
        ("read-only", "not writable"),
        ("file", "File exists"),
        ("base", "Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_trusted_or_made_is_not_used(
    spoil: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    base = tmp_path / "base"
    folder = base / kernel_cache.name()
    if spoil == "base":
        base.write_text("")
    else:
        base.mkdir()
    if spoil == "file":
        folder.write_text("")
    elif spoil != "base":
        folder.mkdir(mode=0o700)
    if spoil == "group":
        folder.chmod(0o770)
    elif spoil == "foreign":
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    elif spoil == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with caplog.at_level(logging.WARNING):
        found = kernel_cache.prepare(base)
    assert found.parent == tmp_path
    assert found.name.startswith("headway-kernels-")
    assert found.stat().st_mode & 0o777 == 0o700
    assert str(found) == numba.config.CACHE_DIR
    (line,) = reasons(caplog, "kernel_cache_unusable")
    assert line["folder"] == str(folder)
    assert said in str(line["reason"])


def test_a_later_start_compiles_nothing(warm: Path) -> None:
    _, was_empty, hits, log = Start(warm).ended()
    assert (was_empty, hits, log) == (False, 1, "")


def test_a_temporary_folder_goes_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("")
    folder, _, _, log = Start(tmp_path / "base").ended()
    assert "kernel_cache_unusable" in log
    assert not folder.exists()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [("nbi", "empty"), ("nbi", "cut"), ("nbc", "cut"), ("nbc", "flipped bit")],
)
def test_damaged_files_are_removed_and_their_kernels_compiled_anew(
    suffix: str, damage: str, warm: Path, tmp_path: Path
) -> None:
    base = copied(warm, tmp_path)
    files = sorted(base.rglob(f"*.{suffix}"))
    assert files
    for file in files:
        held = bytearray(file.read_bytes())
        if damage == "flipped bit":
            held[len(held) // 2] ^= 1
        elif damage == "cut":
            del held[len(held) // 2 :]
        else:
            held.clear()
        file.write_bytes(held)
    _, _, hits, log = Start(base).ended()
    assert (hits, log) == (0, "kernel_cache_damaged\n")
    _, _, hits, log = Start(base).ended()
    assert (hits, log) == (1, "")


def test_whole_files_of_a_start_that_was_killed_are_used(tmp_path: Path, warm: Path) -> None:
    base = copied(warm, tmp_path)
    (base / kernel_cache.name() / kernel_cache.SUMS).unlink()
    _, was_empty, hits, log = Start(base).ended()
    assert (was_empty, hits, log) == (False, 1, "")


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "longer"])
def test_files_without_a_checksum_are_removed_when_a_crash_has_damaged_them(
    damage: str, tmp_path: Path, warm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = copied(warm, tmp_path)
    folder = base / kernel_cache.name()
    (folder / kernel_cache.SUMS).unlink()
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        held = path.read_bytes()
        changed = {"empty": b"", "cut": held[:-1], "zeros": bytes(len(held))}
        path.write_bytes(changed.get(damage, held + b"more"))
    with caplog.at_level(logging.WARNING):
        assert kernel_cache.prepare(base) == folder
    assert kernel_cache.is_empty(folder)
    (line,) = reasons(caplog, "kernel_cache_damaged")
    assert line["removed"] == sorted(path.name for path in files)


@pytest.mark.parametrize("written", ["", "{", "[]", "\udcff"])
def test_damaged_checksums_count_as_none(written: str, tmp_path: Path, warm: Path) -> None:
    base = copied(warm, tmp_path)
    folder = base / kernel_cache.name()
    whole = (folder / kernel_cache.SUMS).read_bytes()
    (folder / kernel_cache.SUMS).write_bytes(written.encode(errors="surrogateescape"))
    kernel_cache.prepare(base)
    kernel_cache.seal(folder)
    assert json.loads((folder / kernel_cache.SUMS).read_bytes()) == json.loads(whole)


def test_checksums_are_written_only_when_they_differ(tmp_path: Path, warm: Path) -> None:
    folder = copied(warm, tmp_path) / kernel_cache.name()
    before = (folder / kernel_cache.SUMS).stat()
    kernel_cache.seal(folder)
    assert (folder / kernel_cache.SUMS).stat().st_ino == before.st_ino
    (folder / "more.nbi").write_bytes(b"more")
    kernel_cache.seal(folder)
    assert "more.nbi" in json.loads((folder / kernel_cache.SUMS).read_text())


def test_a_folder_that_is_gone_cannot_be_sealed_and_that_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kernel_cache.prepare(tmp_path)
    (folder / kernel_cache.SUMS).mkdir()
    with caplog.at_level(logging.WARNING):
        kernel_cache.seal(folder)
    assert len(reasons(caplog, "kernel_cache_not_kept")) == 1


def test_first_starts_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    starts = [Start(tmp_path) for _ in range(2)]
    for each in starts:
        folder, _, _, log = each.ended()
        assert folder == tmp_path / kernel_cache.name()
        assert log == ""
    _, was_empty, hits, log = Start(tmp_path).ended()
    assert (was_empty, hits, log) == (False, 1, "")


def test_folders_of_other_versions_go_when_nobody_has_used_them_for_long(tmp_path: Path) -> None:
    month = 31 * 24 * 3600
    old, young, other = tmp_path / ("0" * 24), tmp_path / ("1" * 24), tmp_path / "mine"
    for folder, age in ((old, month), (young, month - 2 * 24 * 3600), (other, 10 * month)):
        folder.mkdir()
        (folder / "kernel.nbi").touch()
        os.utime(folder, (time.time() - age, time.time() - age))
    own = tmp_path / kernel_cache.name()
    own.mkdir(mode=0o700)
    os.utime(own, (0, 0))
    kept = kernel_cache.prepare(tmp_path)
    assert kept == own, "a folder that is in use is young, whatever it was"
    assert {path.name for path in tmp_path.iterdir()} == {own.name, young.name, other.name}
    assert time.time() - own.stat().st_mtime < 60
