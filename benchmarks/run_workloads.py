#!/usr/bin/env python3
"""Runs workloads of load.py against a fresh `headway serve` and keeps the figures.

    .venv/bin/python benchmarks/run_workloads.py --name first-run

starts the server on a free port with the built-in model (or --model FILE.gguf), waits
until it is ready, runs W1-W4, stops it, and writes benchmarks/results/NAME.json with
the machine, the versions, the commit, the model and the commands beside the figures.
Ends with status 1 when any request failed. Options after `--` go to the server:

    .venv/bin/python benchmarks/run_workloads.py --name bf16 -- --dtype bfloat16

Run it on a quiet machine: nothing else may use the cores meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
from platformdirs import user_cache_path
from tokenizers import Tokenizer
from tokenizers.models import BPE

from headway.service.loaders.builtin import fetch_builtin
from headway.service.loaders.model_files import open_model
from headway.service.loaders.pre_tokenizers import PRE_TOKENIZERS
from headway.service.loaders.progress import ConsoleProgress

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "headway",
    "numba",
    "llvmlite",
    "numpy",
    "gguf",
    "tokenizers",
    "starlette",
    "uvicorn",
    "pyzmq",
)
STOP_S = 60.0  # for the server to end after SIGTERM
POLL_S = 0.2


def main() -> int:
    """Run, check and write; the exit status is 1 when a request failed."""
    options = parse_arguments()
    target = HERE / "results" / f"{options.name}.json"
    if target.exists() and not options.overwrite:
        raise SystemExit(f"{target} exists; choose another --name, or --overwrite")
    model = options.model or Path(fetch_builtin(ConsoleProgress(), cache_folder()))
    tokenizer = write_tokenizer(model, cache_folder() / "benchmarks")
    port = free_port()
    server_command = [
        str(Path(sys.executable).with_name("headway")),
        *("serve", "--host", "127.0.0.1", "--port", str(port)),
        *(("--model", str(options.model)) if options.model else ()),
        *options.server_options,
    ]
    before = {"load_average": os.getloadavg(), "date": datetime.now(UTC).isoformat("T", "seconds")}
    with running(server_command, f"http://127.0.0.1:{port}", options.start_timeout) as process:
        base_url = f"http://127.0.0.1:{port}"
        served = httpx.get(f"{base_url}/v1/models").raise_for_status().json()["data"][0]["id"]
        figures, load_command = run_load(options, base_url, served, tokenizer, process.pid)
    result = {
        "name": options.name,
        **before,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "served_as": served},
        "commands": [plain(server_command), plain(load_command)],
        "workloads": figures["workloads"],
    }
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {target}")
    if failures := errors_of(figures["workloads"]):
        print("\n".join(failures), file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--workloads", default="w1,w2,w3,w4")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--start-timeout", type=float, default=300.0, help="seconds until ready")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("server_options", nargs="*", help="options of headway serve, after --")
    return parser.parse_args()


def cache_folder() -> Path:
    """Where models are kept, as the server finds it."""
    given = os.environ.get("HEADWAY_CACHE_DIR")
    return Path(given) if given else user_cache_path("headway")


def write_tokenizer(model: Path, folder: Path) -> Path:
    """The model file's own tokenizer as a tokenizer.json, for load.py.

    Control tokens are left out: prompts are made of words.
    """
    vocabulary = open_model(str(model)).vocabulary
    if vocabulary.kind != "gpt2":
        raise SystemExit(f"{model}: only byte-level vocabularies are written here")
    words: dict[str, int] = {}
    for token_id, text in enumerate(vocabulary.tokens):
        words.setdefault(text, token_id)
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    tokenizer = Tokenizer(BPE(words, merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[vocabulary.pre or "default"]()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{model.stem}-tokenizer.json"
    tokenizer.save(str(target))
    return target


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: list[str], base_url: str, timeout: float, health: str = "/ready"
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is ready; it is stopped at the end."""
    process = subprocess.Popen(command)
    try:
        wait_until_ready(process, base_url + health, timeout)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], url: str, timeout: float) -> None:
    """Return once the URL answers 200; end the program when the server ends or is too slow."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode} (see above)")
        try:
            if httpx.get(url, timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(POLL_S)
    raise SystemExit(f"the server was not ready within {timeout:g} s")


def run_load(
    options: argparse.Namespace, base_url: str, served: str, tokenizer: Path, server_pid: int
) -> tuple[dict[str, Any], list[str]]:
    """Run load.py; its figures and the command that made them.

    `options.more`, where it is given, are further arguments.
    """
    figures = tokenizer.with_name(f"figures-{os.getpid()}.json")
    command = [
        *(sys.executable, str(HERE / "load.py"), "--base-url", base_url, "--model", served),
        *("--tokenizer", str(tokenizer), "--workloads", options.workloads),
        *("--repetitions", str(options.repetitions), "--server-pid", str(server_pid)),
        *("--label", options.name, "--json", str(figures)),
        *getattr(options, "more", ()),
    ]
    try:
        subprocess.run(command, check=True)
        return json.loads(figures.read_text()), command
    finally:
        figures.unlink(missing_ok=True)


def errors_of(workloads: dict[str, Any]) -> list[str]:
    """A line for each repetition in which a request failed."""
    return [
        f"{name} repetition {number}: {run['errors']} of {run['requests']} requests failed: "
        f"{run.get('first_errors')}"
        for name, figures in workloads.items()
        for number, run in enumerate(figures["repetitions"], 1)
        if run["errors"]
    ]


def plain(command: list[str]) -> str:
    """A command as one line, without this machine's folders."""
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return " ".join(words)


def commit() -> str:
    """The commit that ran, marked when the tree differs from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() or "not a git checkout"


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    cpu = proc_field("/proc/cpuinfo", "model name") or platform.machine()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory": proc_field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def proc_field(file: str, name: str) -> str | None:
    """The first value of a name in a file of /proc."""
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def versions() -> dict[str, str]:
    """Versions of what does the work."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
