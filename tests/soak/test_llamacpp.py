"""A real llama.cpp server, started and watched by a gateway, beside an engine of ours.

`benchmarks/peers.sh` builds it, once, under PEERS_DIR (default: .peers); that takes minutes, so
`make test` leaves this out.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server, free_port, until
from tests.soak.others import ASK, CASCADES, TENANTS, endless, is_alive, order_behind

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers.sh"
START_S = 300.0
SLOTS = 2
CONFIG = """\
models:
  - served_model_name: llama
    upstream:
      kind: llamacpp
      model: model
      url: http://127.0.0.1:{port}
      launch: [bash, {peers}, llama.cpp, q4_1, "{{port}}", --metrics, -np, "{slots}", -c, "4096"]
      max_concurrent: {slots}
      probe_interval: 0.3
  - {{model: {own}, served_model_name: own}}
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to build: make soak"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A gateway that starts llama.cpp itself; its client is a vip."""
    subprocess.run(["bash", str(PEERS), "setup", "llama.cpp", "q4_1"], check=True)
    folder = tmp_path_factory.mktemp("llamacpp")
    config = folder / "headway.yaml"
    text = CONFIG.format(port=free_port(), peers=PEERS, own=smollm2_path, slots=SLOTS)
    config.write_text(TENANTS + text + CASCADES.format(there="llama"))
    server = Server(folder, None, "--config", str(config))
    server.client.headers["authorization"] = "Bearer key-v"
    server.wait_ready(START_S)
    until(lambda: server.metrics()["headway_upstream_up"] == 1.0, START_S, "llama.cpp answers")
    yield server
    children = server.children()
    assert server.stop() == 0
    assert [each for each in children if is_alive(each)] == []


def test_chat_streamed_and_not_with_usage(gateway: Server) -> None:
    whole = gateway.chat("Name a colour.", model="llama")
    assert whole["model"] == "llama"
    assert whole["usage"]["completion_tokens"] == 8
    events = gateway.stream(
        "/v1/chat/completions",
        model="llama",
        messages=ASK,
        max_tokens=8,
        stream_options={"include_usage": True},
    )
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert "is_estimated" not in events[-1]["usage"]
    assert gateway.complete("A colour is", model="llama")["choices"][0]["text"]


def test_its_greedy_answers_are_those_of_our_engine_for_some_tokens(gateway: Server) -> None:
    theirs, ours = (gateway.chat(ASK, model=name, max_tokens=4) for name in ("llama", "own"))
    assert theirs["choices"][0]["message"]["content"] == ours["choices"][0]["message"]["content"]
    assert theirs["usage"]["prompt_tokens"] == ours["usage"]["prompt_tokens"]


def test_errors_of_llama_cpp_are_the_clients_own(gateway: Server) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key-v") as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="llama",
                messages=[{"role": "user", "content": "Hi"}],
                extra_body={"temperature": "warm"},
            )
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model="llama", prompt="word " * 20_000, max_tokens=8)
        assert raised.value.code == "context_length_exceeded"
        assert "127.0.0.1" not in str(raised.value)


def test_its_tokens_are_those_that_it_counts_and_come_back_as_text(gateway: Server) -> None:
    told = gateway.post("/tokenize", {"model": "llama", "messages": ASK}).json()
    assert told["count"] == gateway.chat(ASK, model="llama")["usage"]["prompt_tokens"]
    assert told["max_model_len"] == 4096 // SLOTS
    ours = gateway.post("/tokenize", {"model": "own", "messages": ASK}).json()
    assert told["tokens"] == ours["tokens"]
    words = {"model": "llama", "prompt": "a café 🙂", "return_token_strs": True}
    text = gateway.post("/tokenize", words).json()
    ids = {"model": "llama", "tokens": text["tokens"]}
    assert gateway.post("/detokenize", ids).json()["prompt"] == "a café 🙂"
    assert text["token_strs"][0] == "a"


def running(gateway: Server) -> float:
    return gateway.metrics()["headway_upstream_told_running_requests"]


def test_its_load_is_read_and_a_reader_that_leaves_ends_its_request(gateway: Server) -> None:
    with gateway.client.stream("POST", "/v1/chat/completions", json=endless("llama")) as answer:
        lines = answer.iter_lines()  # kept: without it the connection is closed
        next(lines)
        until(lambda: running(gateway) == 1.0, 20, "llama.cpp says that it runs one")
        assert next(lines) is not None
    until(lambda: running(gateway) == 0.0, 10, "llama.cpp runs nothing any more")


def test_what_finds_no_slot_waits_here_and_the_vip_goes_first(gateway: Server) -> None:
    def waiting() -> float:
        return gateway.metrics()["headway_upstream_waiting_requests"]

    assert order_behind(gateway, "llama", SLOTS, waiting) == ["v", "i"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "model"), [("sure", "llama"), ("unsure", "own"), ("back", "llama")]
)
def test_cascades_from_and_to_it_go_by_log_probabilities(
    gateway: Server, name: str, model: str, stream: bool
) -> None:
    body = {"model": name, "messages": ASK, "max_tokens": 4, "temperature": 0, "stream": stream}
    answer = gateway.post("/v1/chat/completions", body)
    assert answer.status_code == 200
    assert answer.headers["x-headway-model"] == model
    reason = "first" if name == "sure" else "escalated"
    assert answer.headers["x-headway-route"] == f"cascade:{reason}"
    assert 'logprob":' not in answer.text


def test_one_that_is_killed_is_started_again(gateway: Server) -> None:
    for child in gateway.children():
        if "llama" in child.name():
            child.kill()
    until(lambda: gateway.metrics()["headway_upstream_up"] == 0.0, 30, "it is left out")
    until(lambda: gateway.metrics()["headway_upstream_up"] == 1.0, START_S, "it is back")
    assert gateway.chat("Hi", model="llama")["choices"]
    assert gateway.metrics()["headway_upstream_process_starts_total"] == 2
