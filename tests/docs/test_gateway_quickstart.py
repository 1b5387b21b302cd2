"""The quick start of the gateway works as it stands; another Headway stands where vLLM would."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT
from tests.e2e.server import Server

TEXT = (ROOT / "docs" / "quickstart-gateway.md").read_text()
ADMIN_KEY = "an-admin-key-of-the-test"


def blocks(heading: str, language: str) -> list[str]:
    """Code of a part of the page."""
    part = re.search(rf"^## {re.escape(heading)}.*?(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert part is not None, heading
    return re.findall(rf"```{language}\n(.*?)```", part[0], re.DOTALL)


@pytest.fixture
def gateway(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """`headway serve --config headway.yaml` with the page's file."""
    monkeypatch.setenv("HEADWAY_ADMIN_KEY", ADMIN_KEY)
    (text,) = blocks("3. Say where it is", "yaml")
    model = server.client.get("/v1/models").json()["data"][0]["id"]
    changes = {
        "http://127.0.0.1:8001": server.url,
        "Qwen/Qwen3-8B": model,
        "./state": str(tmp_path / "state"),
        "port: 8000\n": "",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "headway.yaml"
    config.write_text(text)
    made = Server(tmp_path, None, "--config", str(config)).wait_ready(30)
    yield made
    assert made.stop() == 0


@pytest.mark.e2e
def test_its_commands_make_a_key_ask_and_account(gateway: Server, tmp_path: Path) -> None:
    titles = ("4. A tenant and a key", "5. Ask", "6. Who used what")
    script = "\n".join(block for title in titles for block in blocks(title, "sh"))
    script = script.replace("http://127.0.0.1:8000", gateway.url)
    assert "REQUEST_ID" in script
    ask = "curl $GATEWAY/v1/chat/completions "
    assert ask in script
    script = script.replace("REQUEST_ID", "first").replace(ask, f"{ask}-H 'X-Request-Id: first' ")
    command = f'{sys.executable} -m headway.app.cli "$@"'
    done = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=f"headway() {{ {command}; }}\n{script}",
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0, f"{said}\n{done.stderr}"
    assert "data: [DONE]" in said
    assert re.search(r"^HTTP/1.1 429 .*\n(.*\n)*?retry-after: \d+", said, re.MULTILINE), said
    assert re.search(r"^acme +qwen3 +\d{4}-\d\d-\d\d +[1-9]", said, re.MULTILINE), said
    assert "It asked for 'qwen3' and went to qwen3" in said
