"""A real llama.cpp server, started and watched by a gateway, beside an engine of ours.

It is built once; that takes minutes, so `make test` leaves this out.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.server import Server
from tests.soak.others import (
    ASK,
    MARKS,
    SLOTS,
    Other,
    check_cascade,
    check_chat,
    check_errors,
    check_load,
    check_restart,
    check_tokens,
    gateway_of,
    order_behind,
)

LLAMA = Other(
    "llama",
    "llama.cpp",
    "q4_1",
    start_s=300.0,
    models="""\
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
""",
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A gateway that starts llama.cpp itself."""
    with gateway_of(LLAMA, tmp_path_factory.mktemp("llamacpp"), smollm2_path) as server:
        yield server


def test_chat_streamed_and_not_with_usage(gateway: Server) -> None:
    check_chat(gateway, "llama")
    assert gateway.complete("A colour is", model="llama")["choices"][0]["text"]


def test_its_greedy_answers_are_those_of_our_engine_for_some_tokens(gateway: Server) -> None:
    theirs, ours = (gateway.chat(ASK, model=name, max_tokens=4) for name in ("llama", "own"))
    assert theirs["choices"][0]["message"]["content"] == ours["choices"][0]["message"]["content"]
    assert theirs["usage"]["prompt_tokens"] == ours["usage"]["prompt_tokens"]


def test_errors_of_llama_cpp_are_the_clients_own(gateway: Server) -> None:
    too_long = check_errors(gateway, "llama", temperature="warm")
    assert too_long.code == "context_length_exceeded"


def test_its_tokens_are_those_that_it_counts_and_come_back_as_text(gateway: Server) -> None:
    text = check_tokens(gateway, "llama", context=4096 // SLOTS)
    assert text["token_strs"][0] == "a"


def test_its_load_is_read_and_a_reader_that_leaves_ends_its_request(gateway: Server) -> None:
    check_load(gateway, "llama")


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
    check_cascade(gateway, name, model, {"messages": ASK, "stream": stream})


def test_one_that_is_killed_is_started_again(gateway: Server) -> None:
    check_restart(gateway, LLAMA, "llama")
