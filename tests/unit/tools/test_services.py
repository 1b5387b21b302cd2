"""tools/services.sh installs what is missing where it may, and else says the line to type."""

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "services.sh"
NEEDED = ("sh", "ls")  # of the system, beside what the shell has built in


def run(folder: Path, **commands: str) -> tuple[int, str, str]:
    """Run it with these commands alone on PATH: status, output, and what went wrong."""
    for name in NEEDED:
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, body in commands.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT)], env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, initdb="", redis_server="") == (0, "", "")


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status, out, _ = run(tmp_path, initdb="", id="echo 0", apt_get=f'echo "$@" >> {log}')
    assert status == 0
    assert "redis-server" in out
    assert log.read_text().split()[0] == "install"
    assert log.read_text().split()[-1] == "redis-server"


def test_package_lists_are_fetched_when_installing_fails_first(tmp_path: Path) -> None:
    log, lists = tmp_path / "log", tmp_path / "lists"
    apt = f'echo "$1" >> {log}; case "$1" in update) : > {lists} ;; *) [ -e {lists} ] ;; esac'
    status, _, _ = run(tmp_path, initdb="", id="echo 0", apt_get=apt)
    assert status == 0
    assert log.read_text().split() == ["install", "update", "install"]


def test_a_sudo_that_asks_nothing_is_used(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sudo = f'echo "$@" >> {log}'
    status, _, _ = run(tmp_path, initdb="", id="echo 1000", sudo=sudo, apt_get="", true="")
    assert status == 0
    assert "apt-get install" in log.read_text()


def test_without_the_right_to_install_it_says_the_line_to_type(tmp_path: Path) -> None:
    status, _, problem = run(tmp_path, initdb="", id="echo 1000", sudo="exit 1", apt_get="exit 9")
    assert status == 2
    assert "sudo apt-get update && sudo apt-get install -y redis-server" in problem


def test_an_apt_that_fails_is_an_error_with_the_line_to_type(tmp_path: Path) -> None:
    status, _, problem = run(tmp_path, initdb="", id="echo 0", apt_get="exit 100")
    assert status == 2
    assert "could not install" in problem
