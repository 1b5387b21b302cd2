"""What the tests of other servers behind a gateway have in common.

`benchmarks/peers.sh` makes and starts those servers, under PEERS_DIR (default: .peers).
"""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import openai
import psutil
import pytest

from tests.e2e.server import Server, free_port, until

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers.sh"
SLOTS = 2
MARKS = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_SOAK"), reason="big to build: make soak"),
]
ASK = [{"role": "user", "content": "Name a colour."}]
CHAT = "/v1/chat/completions"
# Of a gateway with `own` beside `there`.
CASCADES = """\
routes:
  names:
    - {{name: sure, cascade: {{first: {there}, then: own, min_mean_logprob: -100}}}}
    - {{name: unsure, cascade: {{first: {there}, then: own, min_mean_logprob: 0}}}}
    - {{name: back, cascade: {{first: own, then: {there}, min_mean_logprob: 0}}}}
"""
TENANTS = """\
tenant: ["v:vip:key-v", "i:internal:key-i"]
slo_ttft: ["vip=60", "standard=90"]
"""


class Other(NamedTuple):
    """One of them, and the gateway that starts it beside an engine of ours called `own`."""

    model: str  # its name at the gateway
    peer: str  # as peers.sh calls it
    variant: str
    models: str  # section `models` of the configuration, with {port}, {peers}, {slots} and {own}
    start_s: float


@contextmanager
def gateway_of(other: Other, folder: Path, own: str) -> Iterator[Server]:
    """Running, with the other server up; its client is a vip. No child is left afterwards."""
    subprocess.run(["bash", str(PEERS), "setup", other.peer, other.variant], check=True)
    config = folder / "headway.yaml"
    text = other.models.format(port=free_port(), peers=PEERS, own=own, slots=SLOTS)
    config.write_text(TENANTS + text + CASCADES.format(there=other.model))
    server = Server(folder, None, "--config", str(config))
    server.client.headers["authorization"] = "Bearer key-v"
    server.wait_ready(other.start_s)
    until(lambda: _is_up(server), other.start_s, f"{other.model} answers")
    yield server
    children = server.children()
    assert server.stop() == 0
    assert [each for each in children if is_alive(each)] == []


def _is_up(gateway: Server) -> bool:
    return gateway.metrics()["headway_upstream_up"] == 1.0


def check_chat(gateway: Server, model: str) -> None:
    """A chat is answered whole and streamed, with what it used."""
    whole = gateway.chat("Name a colour.", model=model)
    assert whole["model"] == model
    assert whole["usage"]["completion_tokens"] == 8
    events = gateway.stream(
        CHAT, model=model, messages=ASK, max_tokens=8, stream_options={"include_usage": True}
    )
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert "is_estimated" not in events[-1]["usage"]


def check_errors(gateway: Server, model: str, **wrong: object) -> openai.BadRequestError:
    """What it refuses is the client's own error, and names no address; that of a long prompt."""
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key-v") as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Hi"}], extra_body=wrong
            )
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model=model, prompt="word " * 20_000, max_tokens=8)
    assert "127.0.0.1" not in str(raised.value)
    return raised.value


def check_load(gateway: Server, model: str) -> None:
    """Its load is read, and a reader that leaves ends its request there."""

    def running() -> float:
        return gateway.metrics()["headway_upstream_told_running_requests"]

    with gateway.client.stream("POST", CHAT, json=endless(model)) as answer:
        lines = answer.iter_lines()  # kept: without it the connection is closed
        next(lines)
        until(lambda: running() == 1.0, 20, "it says that it runs one")
        assert next(lines) is not None
    until(lambda: running() == 0.0, 10, "it runs nothing any more")


def check_tokens(gateway: Server, model: str, context: int) -> Mapping[str, Any]:
    """Its tokens are those that it counts and our engine has, and come back as text; a text's."""
    told = gateway.post("/tokenize", {"model": model, "messages": ASK}).json()
    assert told["count"] == gateway.chat(ASK, model=model)["usage"]["prompt_tokens"]
    assert told["max_model_len"] == context
    ours = gateway.post("/tokenize", {"model": "own", "messages": ASK}).json()
    assert told["tokens"] == ours["tokens"]
    words = {"model": model, "prompt": "a café 🙂", "return_token_strs": True}
    text: dict[str, Any] = gateway.post("/tokenize", words).json()
    ids = {"model": model, "tokens": text["tokens"]}
    assert gateway.post("/detokenize", ids).json()["prompt"] == "a café 🙂"
    return text


def check_cascade(
    gateway: Server, name: str, model: str, body: Mapping[str, object], path: str = CHAT
) -> None:
    """The cascade of that name is answered by that model; who asked for no scores gets none."""
    asked = {"model": name, "max_tokens": 4, "temperature": 0, **body}
    answer = gateway.post(path, asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-headway-model"] == model
    reason = "first" if name == "sure" else "escalated"
    assert answer.headers["x-headway-route"] == f"cascade:{reason}"
    assert 'logprob":' not in answer.text


def check_restart(gateway: Server, other: Other, program: str) -> None:
    """Killed, it is left out, started again, and answers."""
    for child in gateway.children():
        if program in " ".join(child.cmdline()).lower():
            child.kill()
    until(lambda: not _is_up(gateway), 30, "it is left out")
    until(lambda: _is_up(gateway), other.start_s, "it is back")
    assert gateway.chat("Hi", model=other.model)["choices"]
    assert gateway.metrics()["headway_upstream_process_starts_total"] == 2


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait to be noticed by its new parent."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def endless(model: str) -> dict[str, Any]:
    """A request that runs until its client leaves."""
    counting = [{"role": "user", "content": "Count to a thousand."}]
    body = {"model": model, "messages": counting, "stream": True, "max_tokens": 1500}
    return {**body, "ignore_eos": True}


def _waits(waiting: Callable[[], float], count: int) -> bool:
    return waiting() == count


def order_behind(
    gateway: Server, model: str, num_busy: int, waiting: Callable[[], float]
) -> list[str]:
    """Who is answered first once one of its busy slots is free: internal, or a vip that came later.

    waiting  how many requests wait, wherever that is
    """
    ended: list[str] = []

    def ask(key: str) -> None:
        headers = {"authorization": f"Bearer key-{key}"}
        body = {"model": model, "messages": ASK, "max_tokens": 4}
        if gateway.post(CHAT, body, headers=headers).status_code == 200:
            ended.append(key)

    asking = [threading.Thread(target=ask, args=(key,)) for key in "iv"]
    with ExitStack() as rest:
        first = gateway.client.stream("POST", CHAT, json=endless(model))
        assert first.__enter__().status_code == 200
        try:
            for _ in range(num_busy - 1):
                answer = gateway.client.stream("POST", CHAT, json=endless(model))
                assert rest.enter_context(answer).status_code == 200
            for count, each in enumerate(asking, 1):
                each.start()
                until(partial(_waits, waiting, count), 30, f"{count} wait")
        finally:
            first.__exit__(None, None, None)
        for each in asking:
            each.join(120)
    return ended
