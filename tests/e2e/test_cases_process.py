"""Users' failures around processes: starts, stops, signals, queues, clients that leave."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import SLOWNESS, Server, free_port, seed, strict_json, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER_HI = [{"role": "user", "content": "Hi"}]
Start = Callable[..., Server]


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory, smollm2_path: str) -> Iterator[Server]:
    """A server for one request at a time, for tests that leave it running and idle."""
    folder = tmp_path_factory.mktemp("one-slot")
    seed(folder)
    made = Server(folder, smollm2_path, "--max-num-seqs", "1")
    try:
        yield made.wait_ready()
    finally:
        assert made.stop() == 0


def long_ask(max_tokens: int = 2000, **more: Any) -> dict[str, Any]:
    """A request that takes long, whatever the model thinks of it."""
    return {"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True, **more}


def num_running(server: Server) -> float:
    """Sequences in the running batch."""
    return server.metrics()["vllm:num_requests_running"]


@contextmanager
def open_stream(server: Server, **more: Any) -> Iterator[Iterator[str]]:
    """The lines of a long stream."""
    body = long_ask(stream=True, **more)
    with server.client.stream("POST", COMPLETIONS, json=body) as answer:
        assert answer.status_code == 200
        yield answer.iter_lines()


def send_and_leave(server: Server, body: dict[str, Any], after: Callable[[], bool]) -> None:
    """POST without reading, close the socket once `after` holds."""
    request = httpx.Request("POST", server.url + COMPLETIONS, json=body)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(request.content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + request.content)
        until(after, 20.0, "the request has reached the engine")


def num_ended(server: Server, outcome: str) -> float:
    """Requests with this outcome, over all endpoints."""
    series = server.metrics().items()
    total = "headway_requests_total"
    return sum(n for name, n in series if total in name and f'outcome="{outcome}"' in name)


@pytest.mark.spec("A8")
@pytest.mark.parametrize("stream", [False, True])
def test_cancel_01_a_client_that_leaves_frees_the_only_slot(one_slot: Server, stream: bool) -> None:
    server, before = one_slot, num_ended(one_slot, "cancelled")
    send_and_leave(server, long_ask(8000, stream=stream), lambda: num_running(server) == 1)
    began = time.monotonic()
    assert server.complete("Hi", max_tokens=4)["usage"]["completion_tokens"] == 4
    assert time.monotonic() - began < 15 * SLOWNESS, "the one that left would take minutes"
    until(server.is_idle_and_clean, 3.0, "idle and clean")
    assert num_ended(server, "cancelled") == before + 1


def test_cancel_02_requests_cancelled_in_the_queue_are_never_computed(one_slot: Server) -> None:
    server = one_slot
    with ThreadPoolExecutor(5) as pool, ExitStack() as running:
        lines = running.enter_context(open_stream(server, max_tokens=8000))
        next(lines)  # `lines` is kept: without it the client closes the connection
        before = server.metrics()["headway_engine_computed_prompt_tokens_total"]
        last = pool.submit(server.complete, "Hi", max_tokens=2)
        until(lambda: server.metrics()["request_queue_length"] == 1, 5.0, "one waits")
        for _ in range(4):
            send_and_leave(
                server,
                {"prompt": "never computed " * 9, "max_tokens": 4},
                lambda: server.metrics()["request_queue_length"] == 2,
            )
            until(lambda: server.metrics()["request_queue_length"] == 1, 2.0, "it has left")
        running.close()  # the long one's client leaves, too
        assert last.result()["usage"]["prompt_tokens"] == 1
    assert server.metrics()["headway_engine_computed_prompt_tokens_total"] == before + 1
    until(server.is_idle_and_clean, 3.0, "idle and clean")


@pytest.mark.spec("A7")
def test_keepalive_timeouts_01_silence_is_broken_by_comments(start: Start) -> None:
    server = start("--max-num-seqs", "1", "--keepalive-interval", "0.3")
    ask = {"prompt": "Hi", "max_tokens": 2}
    with ThreadPoolExecutor(1) as pool, ExitStack() as running:
        lines = running.enter_context(open_stream(server, max_tokens=8000))
        next(lines)  # `lines` is kept: without it the client closes the connection
        with server.client.stream("POST", COMPLETIONS, json={**ask, "stream": True}) as queued:
            raw = queued.iter_text()
            assert next(raw).startswith(": keepalive\n\n")
            plain: Future[httpx.Response] = pool.submit(server.post, COMPLETIONS, ask)
            until(lambda: server.metrics()["request_queue_length"] == 2, 5.0, "both wait")
            running.close()  # the long one's client leaves: it is their turn
            rest = "".join(raw)
        strict_json(plain.result().content)
    assert rest.rstrip().endswith("data: [DONE]")


@pytest.mark.spec("C3")
def test_overload_01_a_bounded_queue_refuses_at_once(start: Start) -> None:
    server = start(
        *("--max-num-seqs", "2", "--max-waiting-requests", "8", "--max-waiting-tokens", "400")
    )
    ask = {"prompt": "Hi", "max_tokens": 16, "ignore_eos": True}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.post(COMPLETIONS, ask), range(50)))
        ok = [a for a in answers if a.status_code == 200]
        full = [a for a in answers if a.status_code != 200]
        assert len(ok) >= 10
        assert full
        long_prompts = [{"prompt": [1000 + n] * 300, "max_tokens": 1} for n in range(2)]
        with open_stream(server), open_stream(server):
            until(lambda: num_running(server) == 2, 10.0, "both run")
            waits = pool.submit(server.post, COMPLETIONS, long_prompts[0])
            until(lambda: server.metrics()["request_queue_length"] == 1, 10.0, "the first waits")
            full.append(server.post(COMPLETIONS, long_prompts[1]))
            full.append(server.post(COMPLETIONS, {**ask, "n": 8}))  # counts as eight
        assert waits.result().status_code == 200
    for answer in full:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
    assert num_ended(server, "rejected_queue_full") == len(full)


def test_reload_canary_03_sigterm_lets_running_streams_end(start: Start) -> None:
    server = start("--shutdown-timeout", "60", "--max-num-seqs", "2")
    with ThreadPoolExecutor(4) as pool, open_stream(server, max_tokens=400) as lines:
        next(lines)
        queued = [pool.submit(server.post, COMPLETIONS, long_ask(8)) for _ in range(2)]
        until(lambda: server.metrics()["headway_requests_in_flight"] == 3, 10.0, "all are there")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status_of("/ready") == 503, 1.0, "/ready says no")
        late = server.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 1})
        assert late.status_code == 503
        assert int(late.headers["retry-after"]) >= 1
        assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert {answer.result().status_code for answer in queued} <= {200, 503}
    assert server.process.wait(40 * SLOWNESS) == 0


def test_reload_canary_03_streams_past_the_limit_end_with_an_error_event(start: Start) -> None:
    server = start("--shutdown-timeout", "1")
    children = server.children()
    with open_stream(server) as lines:
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        data = [line for line in lines if line.startswith("data: ")]
    assert "error" in strict_json(data[-1][6:])
    assert "data: [DONE]" not in data
    assert server.process.wait(40 * SLOWNESS) == 0
    assert not any(child.is_running() for child in children)


def test_a_second_signal_ends_at_once(start: Start) -> None:
    server = start("--shutdown-timeout", "60")
    children = server.children()
    with open_stream(server) as lines:
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status_of("/ready") == 503, 1.0, "/ready says no")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(40 * SLOWNESS) == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.spec("M3")
def test_gateway_health_01_a_hung_engine_is_noticed_and_a_dead_one_replaced(start: Start) -> None:
    server = start("--stall-timeout", "2")
    engine = server.children()[0].pid
    assert server.status_of("/ready") == 200
    with open_stream(server) as lines:
        next(lines)
        os.kill(engine, signal.SIGSTOP)
        until(lambda: server.status_of("/ready") == 503, 10.0, "the stall is noticed")
        assert server.status_of("/health") == 200
        os.kill(engine, signal.SIGCONT)
        until(lambda: server.status_of("/ready") == 200, 5.0, "ready again")
        next(lines)
        os.kill(engine, signal.SIGKILL)
        data = [line for line in lines if line.startswith("data: ")]
    assert strict_json(data[-1][6:])["error"]["code"] == "engine_lost"
    assert "data: [DONE]" not in data
    refused = server.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 1})
    if refused.status_code != 200:
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
    until(lambda: server.status_of("/ready") == 200, 60.0, "the engine is back")
    assert server.complete("Hi", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_requests_that_have_sent_nothing_get_503_when_the_engine_dies(start: Start) -> None:
    server = start("--max-num-seqs", "1")
    with ThreadPoolExecutor(2) as pool, open_stream(server) as lines:
        next(lines)
        waiting = [
            pool.submit(server.post, COMPLETIONS, long_ask(4, stream=stream))
            for stream in (False, True)
        ]
        until(lambda: server.metrics()["request_queue_length"] == 2, 10.0, "both wait")
        os.kill(server.children()[0].pid, signal.SIGKILL)
        for answer in waiting:
            assert answer.result().status_code == 503
            assert int(answer.result().headers["retry-after"]) >= 1


def ended(server: Server, seconds: float = 60.0) -> tuple[int, str]:
    """Exit code and last line of a server that must not start; it is never ready."""
    deadline = time.monotonic() + seconds * SLOWNESS
    while server.process.poll() is None:
        assert time.monotonic() < deadline, "the server did not give up"
        assert server.status_of("/ready") != 200
        time.sleep(0.05)
    lines = server.log.read_text().strip().splitlines()
    return server.process.returncode, lines[-1] if lines else ""


def test_startup_config_01_a_wrong_setting_is_named_in_one_line(
    tmp_path: Path, smollm2_path: str
) -> None:
    wrong: list[tuple[list[str], str]] = [
        (["--block-size", "0"], "--block-size"),
        (["--max-model-len", "9000"], "8192"),
        (["--no-such-option"], "--no-such-option"),
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--kv-cache-memory-bytes", str(2**50)], "--kv-cache-memory-bytes"),
    ]
    for index, (options, named) in enumerate(wrong):
        folder = tmp_path / str(index)
        folder.mkdir()
        code, last = ended(Server(folder, smollm2_path, *options), 40.0)
        assert (code, named in last) == (2, True), last


def test_startup_config_01_a_missing_or_broken_model_file_is_named(
    tmp_path: Path, smollm2_path: str
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(smollm2_path).read_bytes()[:3_000_000])
    for name in ("missing.gguf", "broken.gguf"):
        code, last = ended(Server(tmp_path, str(tmp_path / name)))
        assert (code, name in last) == (2, True), last


def test_startup_config_01_a_port_in_use_is_named(tmp_path: Path, smollm2_path: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, last = ended(Server(tmp_path, smollm2_path, "--port", str(port)))
    assert (code, str(port) in last) == (2, True), last


def test_startup_config_01_an_engine_killed_while_it_loads_is_told(start: Start) -> None:
    server = start(wait=False)
    until(lambda: bool(server.children()), 20.0, "the engine process is there")
    children = server.children()
    children[0].kill()
    code, last = ended(server)
    assert code == 2
    assert "SIGKILL" in last
    assert not any(child.is_running() for child in children)


@pytest.mark.spec("J1")
def test_metrics_01_counts_agree_with_what_clients_saw(start: Start) -> None:
    server = start("--max-num-seqs", "2")
    began: list[float] = []
    usage: list[dict[str, Any]] = []
    lock = threading.Lock()

    def streamed(_: int) -> None:
        start_at = time.monotonic()
        events = server.iterate(
            COMPLETIONS, prompt="Hi", max_tokens=3, stream_options={"include_usage": True}
        )
        timed = [(time.monotonic() - start_at, event) for event in events]
        with lock:
            began.append(timed[0][0])
            usage.append(timed[-1][1]["usage"])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(streamed, range(8)))
        plain = list(pool.map(lambda n: server.complete("Hi", max_tokens=2, n=n), [1, 1, 2, 2]))
    usage += [answer["usage"] for answer in plain]
    for _ in range(3):
        assert server.post(COMPLETIONS, {"prompt": ""}).status_code == 400
    send_and_leave(server, long_ask(), lambda: num_running(server) == 1)
    until(server.is_idle_and_clean, 5.0, "idle and clean")
    now = server.metrics()
    assert now["headway_requests_total"] == 8 + 4 + 3 + 1
    assert now["inference_first_token_latency_ms_count"] in (12, 13)
    served = now["vllm:generation_tokens_total"]
    assert served >= sum(entry["completion_tokens"] for entry in usage)
    client_sum_ms = sum(began) * 1000
    assert now["inference_first_token_latency_ms_sum"] > client_sum_ms * 0.2


def test_security_logs_01_nothing_of_a_client_is_in_the_log(start: Start) -> None:
    server = start("--api-key", "sk-REAL-KEY")
    marker, key = "PROMPT-7Q", {"Authorization": "Bearer sk-MARK-7Q"}
    assert server.post(CHAT, {"messages": USER_HI}, headers=key).status_code == 401
    real = {"Authorization": "Bearer sk-REAL-KEY"}
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": marker}], "max_tokens": 2, "user": marker},
        {"messages": USER_HI, "stop": [marker], "max_tokens": 2, "metadata": {"k": marker}},
        {"messages": USER_HI, "temperature": marker},
        {"messages": [{"role": "user", "content": marker * 9000}]},
        {"messages": USER_HI, "tools": [{"type": marker}]},
    ]
    for body in bodies:
        answer = server.post(CHAT, body, headers=real)
        assert answer.status_code in (200, 400)
        if answer.status_code == 400:
            assert marker not in answer.text
    echoed = {"prompt": marker, "echo": True, "max_tokens": 1}
    assert marker in server.post(COMPLETIONS, echoed, headers=real).text
    os.kill(server.children()[0].pid, signal.SIGABRT)
    until(lambda: server.status_of("/ready") == 503, 5.0, "the death is noticed")
    log = server.log.read_bytes()
    log.decode()
    for secret in (marker, "sk-MARK-7Q", "sk-REAL-KEY"):
        assert secret.encode() not in log


def test_security_deserialization_01_only_the_http_port_listens(server: Server) -> None:
    listening = []
    for process in [psutil.Process(server.process.pid), *server.children()]:
        listening += [
            connection.laddr
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert listening == [("127.0.0.1", server.port)]


def test_chunked_prefill_slots_03_more_requests_than_slots(start: Start) -> None:
    server = start("--max-num-seqs", "2", "--max-model-len", "128")
    prompts = [[2000 + 7 * n] * n for n in (3, 17, 40, 90)]
    alone = [server.complete(p, max_tokens=10)["choices"][0]["text"] for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        for turn in range(2):
            turned = prompts[turn:] + prompts[:turn]
            asked = [pool.submit(server.complete, p, max_tokens=10) for p in turned]
            found = [future.result()["choices"][0]["text"] for future in asked]
            assert found == alone[turn:] + alone[:turn]


def test_a_reader_that_stops_reading_is_dropped(start: Start) -> None:
    server = start("--write-timeout", "1", "--max-model-len", "8192")
    body = long_ask(4000, stream=True, logprobs=5, n=4)
    request = httpx.Request("POST", server.url + COMPLETIONS, json=body)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(request.content)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + request.content)
        until(lambda: num_running(server) == 4, 20.0, "it runs")
        until(server.is_idle_and_clean, 90.0, "the stalled reader is dropped")


def test_the_port_that_a_server_used_is_free_again(start: Start) -> None:
    server = start()
    assert server.stop() == 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", server.port))
    assert free_port() > 0
