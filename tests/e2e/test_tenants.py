"""Tenants of a database at a real server: made by the command line, and gone with a signal only."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import environments
from tests.e2e.server import Server, until
from tests.e2e.test_real_clients import run

pytestmark = pytest.mark.e2e
ALL = environments()
KEY = "an-admin-key-of-the-operator"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def admin(*arguments: str) -> Any:
    """The answer of `headway admin`, as JSON."""
    command = [sys.executable, "-m", "headway.app.cli", "admin", *arguments, "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_key_made_and_revoked_on_the_database_counts_at_a_running_server(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    folder = ("--data-dir", str(tmp_path / "data"))
    server = start(*folder, "--admin-key", KEY)
    here = ("--url", server.url, "--admin-key", KEY)
    assert server.post("/v1/chat/completions", CHAT).status_code == 401
    admin("tenant", "create", "acme", "--class", "vip", *here)
    made = admin("key", "create", "acme", *folder)  # on the database, beside the server
    headers = {"Authorization": f"Bearer {made['key']}"}

    def status() -> int:
        return server.post("/v1/chat/completions", CHAT, headers=headers).status_code

    until(lambda: status() == 200, 5.0, "the server knows the key after its poll")
    admin("key", "revoke", made["id"], *folder)
    until(lambda: status() == 401, 5.0, "the server refuses the key after its poll")
    log = admin("audit", "list", *folder)["data"]
    assert [entry["action"] for entry in log] == ["key.revoke", "key.create", "tenant.create"]
    assert log[0]["who"].startswith("cli:")
    assert log[2]["who"].startswith("admin:")


def test_a_database_that_cannot_be_opened_ends_the_start_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "headway.db"
    broken.write_bytes(b"this is no database" * 100)
    command = [sys.executable, "-m", "headway.app.cli", "serve", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "headway.db" in line


@pytest.mark.spec("M9")
def test_schemathesis_finds_no_server_error_and_nothing_undescribed_in_admin(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    environment = ALL["schemathesis"].make()
    server = start("--data-dir", str(tmp_path / "data"), "--admin-key", KEY, "--load", "demand")
    described = server.client.get("/admin/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
    document = tmp_path / "admin.json"
    document.write_text(described.text)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    checks += ",response_schema_conformance"
    command = [str(environment.program("schemathesis")), "run", str(document), "--url", server.url]
    command += ["--header", f"Authorization: Bearer {KEY}", "--checks", checks]
    command += ["--max-examples", "15", "--seed", "7", "--phases", "examples,coverage,fuzzing"]
    told = run(command, tmp_path, {})
    counts = re.search(r"(\d+) generated, (\d+) passed$", told, re.MULTILINE)
    assert counts is not None, told[-3000:]
    assert counts[1] == counts[2]
    assert int(counts[1]) > 300
    assert server.status_of("/health") == 200
