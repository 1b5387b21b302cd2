"""Arguments: what they become, and one line for those that are not known."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from headway import __version__
from headway.app import cli
from headway.app.options import OPTIONS
from headway.app.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that `serve` was called with."""
    seen: list[Settings] = []

    def serve(models: Sequence[Settings], again: object = None) -> int:
        seen.extend(models)
        return 0

    monkeypatch.setattr(cli, "serve", serve)
    return seen


def test_the_model_may_come_first_or_by_its_flag(served: list[Settings]) -> None:
    assert cli.main(["serve", "a.gguf", "--port", "9"]) == 0
    assert cli.main(["serve", "--model", "b.gguf"]) == 0
    assert [settings.model for settings in served] == ["a.gguf", "b.gguf"]
    assert served[0].gateway.port == 9


def test_lists_sizes_and_switches_are_understood(served: list[Settings]) -> None:
    arguments = ["serve", "--api-key", "a", "b", "--kv-cache-memory-bytes", "512M"]
    cli.main([*arguments, "--no-enable-prefix-caching", "--max-model-len", "auto"])
    (settings,) = served
    assert settings.gateway.api_key == ("a", "b")
    assert settings.engine.kv_cache_memory_bytes == 512 * 2**20
    assert settings.engine.enable_prefix_caching is False
    assert settings.engine.max_model_len == "auto"


def test_the_environment_is_read(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_MAX_NUM_SEQS", "7")
    cli.main(["serve"])
    assert served[0].engine.max_num_seqs == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--prot", "1"], "headway serve: --prot: is not an option; did you mean --port?"),
        (["serve", "--xyz=1"], "headway serve: --xyz: is not an option; see headway serve --help"),
        (["serve", "--port"], "headway serve: argument --port: expected one argument"),
        (["serve", "--port", "x"], "headway serve: --port: must be a whole number, got 'x'"),
        (["frobnicate"], "headway: argument command: invalid choice: 'frobnicate'"),
        ([], "headway: the following arguments are required: command"),
        (["bench"], "headway bench: the following arguments are required"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(said)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"headway {__version__}\n"


def test_who_reads_no_further_sees_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headway.app.cli", "version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_help_names_every_option_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert f"--{option.name}" in text
        assert f"[{option.variable}]" in text


def test_bench_takes_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "serve", "--help"])
    assert caught.value.code == 0
    assert "--num-prompts" in capsys.readouterr().out


def test_the_server_s_process_imports_nothing_that_computes() -> None:
    heavy = ("numpy", "numba", "llvmlite", "gguf", "torch", "httpx", "headway.compute.cpu.executor")
    code = (
        f"import sys, headway.app.cli; print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
