"""SIGHUP: the file is read again without dropping a request, or refused as a whole."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, until

CONFIG = """\
models:
  - upstream: {{name: one, url: {url}, kind: headway, model: {model}}}
  - upstream: {{name: two, url: {url}, kind: headway, model: {model}}}
routes:
  names:
    - {{name: chat, pool: one}}
tenants:
  - {{name: acme, keys: [sk-acme]}}
"""
HI = {"messages": [{"role": "user", "content": "Count to thirty."}], "max_tokens": 40}


@pytest.fixture
def front(server: Server, tmp_path: Path) -> Iterator[Server]:
    """A gateway with a file, in front of the shared server."""
    model = server.client.get("/v1/models").json()["data"][0]["id"]
    config = tmp_path / "headway.yaml"
    config.write_text(CONFIG.format(url=server.url, model=model))
    made = Server(tmp_path, None, "--config", str(config)).wait_ready(30)
    yield made
    assert made.stop() == 0


def ask(front: Server, key: str, model: str = "chat") -> tuple[int, str]:
    answer = front.client.post(
        "/v1/chat/completions",
        json=HI | {"model": model, "max_tokens": 1},
        headers={"Authorization": f"Bearer {key}"},
    )
    return answer.status_code, answer.headers.get("x-headway-model", "")


def change(front: Server, file: Path, old: str, new: str) -> str:
    """Edit the file and ask for a reload; what the log says of it."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))

    def told() -> list[str]:
        return [line for line in front.log.read_text().splitlines() if "reload" in line]

    known = len(told())
    front.process.send_signal(signal.SIGHUP)
    until(lambda: len(told()) > known, 20, "the reload is told of")
    return told()[-1]


def test_tenants_and_routes_change_under_a_running_stream(front: Server, tmp_path: Path) -> None:
    file = tmp_path / "headway.yaml"
    assert ask(front, "sk-acme") == (200, "one")
    headers = {"Authorization": "Bearer sk-acme"}
    body = HI | {"model": "chat", "stream": True}
    with front.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        assert json.loads(first.removeprefix("data: "))["model"] == "chat"
        said = change(front, file, "pool: one", "pool: two")
        assert "reloaded" in said
        said = change(front, file, "name: acme, keys: [sk-acme]", "name: zeta, keys: [sk-zeta]")
        assert "reloaded" in said
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert ask(front, "sk-zeta") == (200, "two")
    assert ask(front, "sk-acme")[0] == 401


def test_a_file_that_is_wrong_changes_nothing(front: Server, tmp_path: Path) -> None:
    file = tmp_path / "headway.yaml"
    said = change(front, file, "pool: one", "pool: three")
    assert "reload_refused" in said
    assert "headway.yaml:6: routes.names[0].pool" in said
    assert ask(front, "sk-acme") == (200, "one")


def test_an_engine_of_ours_comes_beside_the_others_and_takes_their_traffic(
    front: Server, tmp_path: Path, smollm2_path: str
) -> None:
    file = tmp_path / "headway.yaml"
    headers = {"Authorization": "Bearer sk-acme"}
    body = HI | {"model": "chat", "stream": True, "ignore_eos": True, "max_tokens": 100}
    ours = f"{{model: {smollm2_path}, served_model_name: [three], max_model_len: 512}}"
    with front.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        file.write_text(file.read_text().replace("pool: one", "pool: three"))
        said = change(front, file, "models:\n", f"models:\n  - {ours}\n")
        assert "models_leaving=none models_started=three" in said
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert ask(front, "sk-acme") == (200, "three")
    assert len(front.children()) == 1
    file.write_text(file.read_text().replace("pool: three", "pool: two"))
    said = change(front, file, f"  - {ours}\n", "")
    assert "models_leaving=three models_started=none" in said
    assert ask(front, "sk-acme") == (200, "two")
    until(lambda: not front.children(), 30, "its process has ended")
