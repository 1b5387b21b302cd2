"""deploy/nginx.conf under a real nginx: streams leave event by event, and who leaves ends."""

import asyncio
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import free_port
from tests.unit.service.gateway.fakes import CHAT, HI, FakeReplica, run, site, until

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NEED = (
    "nginx is missing, which this test needs; run tools/services.sh, which says how to install it"
)
START_S = 10.0
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # of its temporary folders


def nginx_program() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        pytest.fail(NEED)
    return found


@contextmanager
def nginx(folder: Path, backend: int) -> Iterator[str]:
    """The shipped configuration with other ports and folders; its address."""
    port = free_port()
    text = CONFIG.read_text()
    for pattern, wanted in (
        (r"127\.0\.0\.1:8000", f"127.0.0.1:{backend}"),
        (r"listen 8080", f"listen 127.0.0.1:{port}"),
        (r"pid [^;]+", f"pid {folder}/pid"),
    ):
        text, count = re.subn(pattern, wanted, text)
        assert count == 1, pattern
    own = [f"{kind}_temp_path {folder}/{kind};" for kind in KINDS]
    text = text.replace("http {", "http {\n" + "\n".join(own), 1)
    file = folder / "nginx.conf"
    file.write_text(text)
    command = [nginx_program(), "-c", str(file), "-p", str(folder), "-g", "daemon off;"]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    server = subprocess.Popen(command)
    try:
        _wait_until_it_answers(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(START_S)


def _wait_until_it_answers(port: int) -> None:
    # Only connects: what stands behind it runs on the loop that waits here.
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nginx does not answer"
            time.sleep(0.02)


@pytest.mark.spec("A6")
def test_each_event_passes_at_once_and_a_client_that_leaves_ends_its_request(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with site() as here:
            with nginx(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
                    body = {**HI, "stream": True}
                    asked = client.send(client.build_request("POST", CHAT, json=body), stream=True)
                    asking = asyncio.create_task(asked)
                    (request_id,) = await here.calls(1)
                    here.replica.start(request_id)
                    here.replica.say(request_id, "zero")  # the header leaves with it
                    answer = await asking
                    assert answer.headers["content-type"].startswith("text/event-stream")
                    lines = answer.aiter_lines()
                    for word in ("one", "two", "three"):
                        # Nothing more is written until the client has read this.
                        here.replica.say(request_id, word)
                        async with asyncio.timeout(5):
                            while word not in await anext(lines):
                                pass
                    await answer.aclose()
                    await until(lambda: here.replica.cancelled == [request_id])

    run(scenario())


def test_a_request_that_fails_is_sent_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        replica = FakeReplica()

        def lost(of: FakeReplica, request: object) -> None:
            of.lose(of.ids[-1])

        replica.script = lost
        async with site(replica=replica) as here:
            with nginx(tmp_path, here.port) as url:
                async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
                    assert (await client.post(CHAT, json=HI)).status_code == 503
                    assert len(here.replica.ids) == 1
                    assert (await client.get("/metrics")).status_code == 200

    run(scenario())
