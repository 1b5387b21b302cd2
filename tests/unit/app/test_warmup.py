"""`headway warmup` as a process, in the folder that the other tests use too."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CACHE


def warmed_up(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    ended = subprocess.run(
        [sys.executable, "-m", "headway.app.cli", "warmup", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")},
    )
    return ended.returncode, ended.stdout, ended.stderr


def kept(folder: Path) -> dict[str, int]:
    """Every file, and which write made it."""
    return {str(path): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def test_a_second_warmup_finds_all_kernels_in_the_folder_that_it_names(smollm2_path: str) -> None:
    arguments = ("--model", smollm2_path, "--cache-dir", str(CACHE))
    code, out, err = warmed_up(*arguments)
    assert code == 0, err
    said = re.fullmatch(r"kernels (compiled|loaded) in \d+\.\d s; they are in (.*)\n", out)
    assert said is not None, out
    folder = Path(said[2])
    assert folder.parent == CACHE / "kernels"
    assert "loading the weights: 100%" in err
    for _ in range(5):  # other tests may compile something beside this one
        before = kept(folder)
        assert before
        code, out, err = warmed_up(*arguments)
        assert code == 0, err
        is_loaded = out.startswith("kernels loaded in ") and "compiling" not in err
        if is_loaded and kept(folder) == before:
            return
    pytest.fail(f"each warmup compiles or writes again: {out}{err}")


def test_a_folder_that_cannot_be_written_is_an_error(smollm2_path: str, tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    code, out, err = warmed_up("--model", smollm2_path, "--cache-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert "kernel_cache_unusable" in err
    last = err.splitlines()[-1]
    assert last.startswith(f"headway warmup: compiled kernels cannot be kept below {tmp_path}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--modle", "x"], "headway warmup: --modle: is not an option; did you mean --model?"),
        (["--port", "1"], "headway warmup: --port: is not an option; see headway warmup --help"),
        (["--model"], "headway warmup: argument --model: expected one argument"),
        (["--model", "/no/where.gguf"], "headway warmup: /no/where.gguf: no such file"),
    ],
)
def test_startup_config_01_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    code, out, err = warmed_up(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1
