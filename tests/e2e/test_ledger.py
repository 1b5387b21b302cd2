"""What a real server records of real requests, asked over HTTP and on its database."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, until

pytestmark = pytest.mark.e2e
KEY = "an-admin-key-of-the-operator"
SECRET = "what-nobody-else-may-read"
LONG = f"{SECRET} " + "Once upon a time there was a king. " * 40


def headway(*arguments: str, home: Path | None = None) -> str:
    """What the command prints; `home` is the user's data folder."""
    command = [sys.executable, "-m", "headway.app.cli", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    environment |= {} if home is None else {"XDG_DATA_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(server: Server, name: str, **fields: Any) -> httpx.Response:
    headers = {"Authorization": "Bearer key-of-acme", "X-Request-Id": name}
    body = {"prompt": LONG, "max_tokens": 12, "temperature": 0, **fields}
    return server.post("/v1/completions", body, headers=headers)


def told(server: Server, path: str) -> Any:
    answer = server.client.get(path, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.spec("A9")
@pytest.mark.spec("M6")
def test_requests_are_recorded_explained_and_survive_a_killed_gateway(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    options = ("--data-dir", str(data), "--admin-key", KEY, "--tenant", "acme:vip:key-of-acme")
    server = start(*options)
    first = asked(server, "first").json()["usage"]
    second = asked(server, "second", stream=True, stream_options={"include_usage": True})
    events = [line[6:] for line in second.text.splitlines() if line.startswith("data: {")]
    usage = json.loads(events[-1])["usage"]
    one, two = (told(server, f"/admin/requests/{name}")["request"] for name in ("first", "second"))
    for record, seen in ((one, first), (two, usage)):
        assert record["prompt_tokens"] == seen["prompt_tokens"]
        assert record["completion_tokens"] == record["sent_tokens"] == seen["completion_tokens"]
        assert record["cached_tokens"] == seen["prompt_tokens_details"]["cached_tokens"]
        assert (record["tenant"], record["slo_class"], record["outcome"]) == ("acme", "vip", "ok")
        assert record["device_s"] > 0
        assert record["device_s"] <= record["prefill_s"] + record["decode_s"] + 0.05
    assert one["cached_tokens"] == 0
    assert two["cached_tokens"] > 300
    assert (one["num_chunks"] >= 1, two["num_chunks"]) == (True, 1)
    why = told(server, "/admin/requests/second")["why"]
    assert f"{two['cached_tokens']} came from the prefix cache" in why["cache"]

    with server.client.stream(
        "POST",
        "/v1/completions",
        json={"prompt": "Count:", "max_tokens": 400, "ignore_eos": True, "stream": True}
        | {"return_token_ids": True},
        headers={"Authorization": "Bearer key-of-acme", "X-Request-Id": "killed"},
    ) as stream:
        lines = stream.iter_lines()
        got = [next(lines) for _ in range(12)]
        os.kill(server.process.pid, signal.SIGKILL)
        got += _rest(lines)
    chunks = [json.loads(line[6:]) for line in got if line.startswith("data: {")]
    received = sum(len(chunk["choices"][0]["token_ids"]) for chunk in chunks)
    again = start(*options)
    until(lambda: _is_known(again, "killed"), 10.0, "the lost request is recorded")
    lost = told(again, "/admin/requests/killed")["request"]
    assert lost["outcome"] == "lost"
    assert 0 < lost["sent_tokens"] <= received <= lost["sent_tokens"] + lost["unsure_tokens"]
    rows = json.loads(headway("usage", "--by", "tenant,outcome", "--json", "--data-dir", str(data)))
    found = {(row["tenant"], row["outcome"]): row["requests"] for row in rows["data"]}
    assert found == {("acme", "lost"): 1, ("acme", "ok"): 2}
    assert "came from tenant 'acme'" in headway("explain", "first", "--data-dir", str(data))
    assert again.stop() == 0
    kept = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"first" in kept
    assert SECRET.encode() not in kept
    assert list((data / "spool").iterdir()) == []


@pytest.fixture
def own(tmp_path: Path, smollm2_path: str) -> Iterator[Callable[..., Server]]:
    """Starts a server whose user has no data folder yet."""
    started: list[Server] = []

    def start_one(*options: str) -> Server:
        started.append(Server(tmp_path, smollm2_path, *options))
        return started[-1].wait_ready()

    yield start_one
    for server in started:
        server.stop()


@pytest.mark.spec("A9")
@pytest.mark.spec("M6")
def test_a_plain_server_records_what_headway_usage_and_explain_show(
    own: Callable[..., Server],
) -> None:
    server = own()
    usage = server.complete(LONG, max_tokens=5)["usage"]
    named = {"prompt": LONG, "max_tokens": 5}
    assert server.post("/v1/completions", named, headers={"X-Request-Id": "mine"}).is_success
    home = server.data_home

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(headway("usage", "--json", home=home))["data"]
        return found

    until(lambda: bool(rows()) and rows()[0]["requests"] == 2, 10.0, "both are in the file")
    (row,) = rows()
    assert row["completion_tokens"] == 2 * usage["completion_tokens"]
    assert "It was answered completely" in headway("explain", "mine", home=home)
    assert not _has_sqlalchemy(server)

    # A tenant's key that is made beside it counts at once, and closes it to everybody else.
    headway("admin", "tenant", "create", "acme", home=home)
    made = headway("admin", "key", "create", "acme", "--json", home=home)
    key = {"Authorization": f"Bearer {json.loads(made)['key']}"}
    until(lambda: server.post("/v1/completions", named).status_code == 401, 10.0, "it is closed")
    until(lambda: server.post("/v1/completions", named, headers=key).is_success, 10.0, "it opens")
    assert not _has_sqlalchemy(server), "its import would hold up the streams that are open"
    assert server.stop() == 0
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {"headway.db", "headway.db.lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in kept)


@pytest.mark.spec("M13")
def test_a_server_that_is_told_to_keep_nothing_writes_no_file(
    own: Callable[..., Server],
) -> None:
    server = own("--data-dir", "none")
    server.complete()
    assert server.stop() == 0
    assert not server.data_home.exists()


def _has_sqlalchemy(server: Server) -> bool:
    """It has compiled parts, which would be mapped."""
    return "sqlalchemy" in Path(f"/proc/{server.process.pid}/maps").read_text()


def _rest(lines: Any) -> list[str]:
    found = []
    try:
        for line in lines:
            found.append(line)
    except httpx.TransportError:
        return found
    return found


def _is_known(server: Server, name: str) -> bool:
    path = f"/admin/requests/{name}"
    headers = {"Authorization": f"Bearer {KEY}"}
    return server.client.get(path, headers=headers).status_code == 200
