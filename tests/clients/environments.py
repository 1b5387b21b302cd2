"""Environments of the clients: made once, kept in the user's cache, never in our own."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

LIST = Path(__file__).with_name("environments.toml")
SCRIPTS = Path(__file__).with_name("scripts")
MADE = "made"  # a file, written last
INSTALL_S = 1200


class Environment(msgspec.Struct, frozen=True):
    """One client: what it is called, what is installed, and where."""

    key: str
    name: str
    package: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Another one for other packages, or another interpreter."""
        made_of = json.dumps([self.pip, self.npm, sys.version, sys.prefix]).encode()
        base = Path(os.environ.get("HEADWAY_CACHE_DIR") or platformdirs.user_cache_path("headway"))
        return base / "clients" / f"{self.key}-{hashlib.sha256(made_of).hexdigest()[:12]}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.program("python")

    def program(self, name: str) -> Path:
        """A command that its packages brought."""
        return self.folder / "venv" / "bin" / name

    def make(self) -> "Environment":
        """Install it unless that was done; other processes wait meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / MADE).exists():
                self._install()
                (self.folder / MADE).touch()
        return self

    def version(self) -> str:
        """Of the client itself, as installed."""
        if self.npm:
            manifest = self.folder / "node_modules" / self.package / "package.json"
            found = json.loads(manifest.read_text())["version"]
            assert isinstance(found, str)
            return found
        ask = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        return _run([str(self.python), "-c", ask]).strip()

    def _install(self) -> None:
        if self.npm:
            quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
            _run(["npm", "install", *quiet, "--prefix", str(self.folder), *self.npm])
            shutil.copytree(SCRIPTS, self.folder, dirs_exist_ok=True)
            return
        venv = self.folder / "venv"
        if uv := _uv():
            _run([uv, "venv", "-q", "--clear", "-p", sys.executable, str(venv)])
            _run([uv, "pip", "install", "-q", "-p", str(self.python), *self.pip])
        else:
            _run([sys.executable, "-m", "venv", "--clear", str(venv)])
            _run([str(self.python), "-m", "pip", "install", "-q", *self.pip])


def environments() -> dict[str, Environment]:
    """All of them, in the order of the list."""
    found: dict[str, Any] = tomllib.loads(LIST.read_text())
    return {
        key: msgspec.convert(values | {"key": key}, Environment) for key, values in found.items()
    }


def _uv() -> str | None:
    """A quicker installer, if there is one; pip's settings for wheels hold for it too."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def _run(command: list[str]) -> str:
    environment = dict(os.environ)
    if links := os.environ.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", links.replace(" ", ","))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_S, env=environment
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout
