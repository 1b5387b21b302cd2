"""Users' failures around requests: bad input, sampling, concurrency, the prefix cache."""

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from headway.service.loaders.model_files import ModelFile
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.e2e.server import SLOWNESS, Server, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER_HI = [{"role": "user", "content": "Hi"}]


def refused(server: Server, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """The error object of a request that must be refused the same streamed or not."""
    plain = server.post(path, body)
    streamed = server.post(path, {**body, "stream": True})
    for answer in (plain, streamed):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("application/json")
    assert plain.json() == streamed.json()
    error = plain.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


@pytest.mark.spec("A3")
def test_streaming_sse_01_an_invalid_request_is_a_4xx_streamed_or_not(server: Server) -> None:
    long = refused(server, CHAT, {"messages": USER_HI, "max_tokens": 9000})
    assert "8192" in long["message"]
    assert refused(server, CHAT, {"messages": USER_HI, "temperature": -1})["param"] == "temperature"
    assert refused(server, CHAT, {"messages": USER_HI, "model": "no-such"}, 404)["param"] == "model"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["Hi", ""], None])
def test_odd_prompts_bounds_01_an_empty_prompt_is_refused(server: Server, prompt: Any) -> None:
    body = {"max_tokens": 2} if prompt is None else {"prompt": prompt, "max_tokens": 2}
    assert refused(server, COMPLETIONS, body)["param"].startswith("prompt")


def test_odd_prompts_bounds_01_blank_prompts_work(server: Server) -> None:
    for prompt in (" ", "\n"):
        assert server.complete(prompt, max_tokens=2)["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize(
    "bias",
    [
        {"49152": -100},
        {"-1": 5},
        {"200000": 5},
        {"word": -100},
        {"1.5": 1},
        {"5": 1000},
        {"5": None},
    ],
)
def test_odd_prompts_bounds_02_a_bias_outside_the_vocabulary(
    server: Server, bias: dict[str, Any]
) -> None:
    error = refused(server, COMPLETIONS, {"prompt": "Hi", "max_tokens": 1, "logit_bias": bias})
    assert error["param"].startswith("logit_bias")
    assert next(iter(bias)) in error["message"]


def test_odd_prompts_bounds_02_the_last_id_may_be_biased(server: Server) -> None:
    assert server.complete("Hi", max_tokens=1, logit_bias={"49151": 1})["choices"]
    everything = {str(token): 1 for token in range(49152)}
    refused(server, COMPLETIONS, {"prompt": "Hi", "max_tokens": 1, "logit_bias": everything})


def test_odd_prompts_bounds_03_token_ids_are_checked_one_by_one(server: Server) -> None:
    bad: list[Any] = [[-1], [49152], [9 * 10**18], [1, 2.5], [True], [[1, 2], [3, -4]]]
    for prompt in bad:
        error = refused(server, COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
        assert error["param"].startswith("prompt")
    assert server.complete([0, 0, 0], max_tokens=1)["usage"]["prompt_tokens"] == 3
    assert server.complete([49151], max_tokens=1)["usage"]["prompt_tokens"] == 1


def test_odd_prompts_bounds_04_zero_tokens_and_impossible_minimums(server: Server) -> None:
    scored = {"prompt": "Is ice cold? Yes", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = server.post(COMPLETIONS, scored)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert answer.json()["usage"]["completion_tokens"] == 0
        count = answer.json()["usage"]["prompt_tokens"]
        assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == count
    assert refused(server, COMPLETIONS, {"prompt": "Hi", "max_tokens": 0})["param"] == "max_tokens"
    refused(server, CHAT, {"messages": USER_HI, "max_tokens": 0})
    body = {"prompt": "Hi", "max_tokens": 5, "min_tokens": 10}
    assert refused(server, COMPLETIONS, body)["param"] == "min_tokens"


def test_odd_prompts_bounds_05_a_small_request_for_huge_work_is_refused(server: Server) -> None:
    engine = max(server.children(), key=lambda child: int(child.memory_info().rss))
    gateway = psutil.Process(server.process.pid)
    before = engine.memory_info().rss + gateway.memory_info().rss
    refused(server, CHAT, {"messages": USER_HI, "logprobs": True, "top_logprobs": 16384})
    refused(server, COMPLETIONS, {"prompt": "Hi", "logprobs": 49152})
    refused(server, COMPLETIONS, {"prompt": "Hi", "n": 10000})
    refused(server, COMPLETIONS, {"prompt": "Hi", "best_of": 10000})
    refused(server, COMPLETIONS, {"prompt": ["Hi"] * 100_000})
    refused(server, COMPLETIONS, {"prompt": "Hi", "stop_token_ids": [1] * 100_000})
    refused(server, CHAT, {"messages": USER_HI * 10_000})
    tool = {"type": "function", "function": {"name": "f"}}
    refused(server, CHAT, {"messages": USER_HI, "tools": [tool] * 5000})
    assert engine.memory_info().rss + gateway.memory_info().rss - before < 60 * 2**20


def test_sampling_01_a_seeded_answer_does_not_depend_on_its_neighbours(server: Server) -> None:
    ask = {"prompt": "The capital of France is", "seed": 42, "temperature": 0.8, "max_tokens": 16}

    def answer(extra: dict[str, Any]) -> str:
        text = server.complete(**{**ask, **extra})["choices"][0]["text"]
        assert isinstance(text, str)
        return text

    alone = answer({})
    neighbours: list[dict[str, Any]] = [
        {"prompt": "Once upon a time", "seed": None},
        {"prompt": "Roses are red", "seed": 7},
    ]
    with ThreadPoolExecutor(3) as pool:
        for neighbour in neighbours:
            beside = pool.submit(answer, neighbour)
            mixed = [pool.submit(answer, {}) for _ in range(2)]
            assert {future.result() for future in mixed} == {alone}
            beside.result()


def first_token_logprobs(server: Server, **fields: Any) -> dict[str, float]:
    """The best candidates after 'tea tea tea tea'."""
    answer = server.complete("tea tea tea tea", max_tokens=1, logprobs=5, **fields)
    found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    assert isinstance(found, dict)
    return found


def test_sampling_02_penalties_count_what_their_definition_says(
    server: Server, smollm2: ModelFile
) -> None:
    (tea,) = build_tokenizer(smollm2).encode(" tea", add_special=False, parse_special=False)
    visible = {str(tea): 6}  # lifts ' tea' into the five that are shown
    plain = first_token_logprobs(server, logit_bias=visible)
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}):
        same = first_token_logprobs(server, logit_bias=visible, **penalty)
        assert same == pytest.approx(plain, abs=1e-4)
    repeated = first_token_logprobs(server, logit_bias=visible, repetition_penalty=1.8)
    assert " tea" in plain
    assert repeated.get(" tea", -99.0) < plain[" tea"]


@pytest.mark.parametrize("temperature", [1e-4, 1e-7, 1e-30, 5e-324])
@pytest.mark.parametrize("top_p", [1, 1e-9])
def test_sampling_03_a_tiny_temperature_is_greedy(
    server: Server, temperature: float, top_p: float
) -> None:
    greedy = server.complete("The sky is", max_tokens=6)["choices"][0]["text"]
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(server.complete, "Two plus two is", max_tokens=6)
        tiny = server.complete("The sky is", max_tokens=6, temperature=temperature, top_p=top_p)
        assert tiny["choices"][0]["text"] == greedy
        assert beside.result()["usage"]["completion_tokens"] == 6


@pytest.mark.spec("D2")
@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 83])
def test_prefix_cache_01_hit_and_miss_give_the_same_answer(server: Server, length: int) -> None:
    rng = random.Random(length)
    prompt = [rng.randrange(1000, 30_000) for _ in range(length)]
    answers = [server.complete(prompt, max_tokens=4, logprobs=1) for _ in range(3)]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]
    firsts = [answer["choices"][0]["logprobs"]["token_logprobs"][0] for answer in answers]
    assert max(firsts) - min(firsts) < 1e-2


def test_prefix_cache_01_a_shared_beginning_with_different_ends(server: Server) -> None:
    rng = random.Random(1)
    stem = [rng.randrange(1000, 30_000) for _ in range(32)]
    server.complete([*stem, 504], max_tokens=2)
    other = server.complete([*stem, 905], max_tokens=4)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    echoed = server.complete([*stem, 905], max_tokens=4, echo=True, logprobs=0)
    assert echoed["choices"][0]["text"].endswith(other["choices"][0]["text"])


def test_concurrency_01_two_requests_with_the_same_client_id(server: Server) -> None:
    headers = {"X-Request-Id": "dup"}
    bodies: list[dict[str, Any]] = [
        {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
        {"prompt": "Two plus two is", "max_tokens": 8, "temperature": 0},
    ]
    alone = [server.post(COMPLETIONS, body).json()["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(server.post, COMPLETIONS, b, headers=headers) for b in bodies]
        answers = [future.result() for future in futures]
    assert [answer.json()["choices"][0]["text"] for answer in answers] == alone
    assert [answer.headers["x-request-id"] for answer in answers] == ["dup", "dup"]
    assert answers[0].json()["id"] != answers[1].json()["id"]


def test_concurrency_02_prompts_are_counted_right_by_many_clients_at_once(server: Server) -> None:
    prompts = [f"{'word ' * (index % 7)}number {index}" for index in range(60)]
    bodies: list[tuple[str, dict[str, Any]]] = []
    for index, prompt in enumerate(prompts):
        if index % 2:
            bodies.append((COMPLETIONS, {"prompt": prompt, "max_tokens": 1, "stop": ["zz"]}))
        else:
            bodies.append(
                (CHAT, {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1})
            )

    def count(ask: tuple[str, dict[str, Any]]) -> int:
        answer = server.post(*ask)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens"])

    serial = [count(ask) for ask in bodies[:8]]
    with ThreadPoolExecutor(20) as pool:
        parallel = list(pool.map(count, bodies))
    assert parallel[:8] == serial


def test_chunked_prefill_slots_02_no_state_survives_its_request(server: Server) -> None:
    greedy = {"A": "The sky is", "B": "Two plus two is", "C": "The capital of France is"}
    alone = {k: server.complete(v, max_tokens=12)["choices"][0]["text"] for k, v in greedy.items()}
    disturbing: list[dict[str, Any]] = [
        {"logit_bias": {"10813": 100}, "max_tokens": 3},
        {"presence_penalty": 2, "repetition_penalty": 1.9, "seed": 1, "temperature": 1.5},
        {"stop": ["e"], "min_tokens": 2, "top_k": 3, "temperature": 2},
    ]
    rng = random.Random(3)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(4):
            noise = [pool.submit(server.complete, "Noise", **extra) for extra in disturbing]
            order = rng.sample(sorted(greedy), k=3)
            asked = {k: pool.submit(server.complete, greedy[k], max_tokens=12) for k in order}
            found = {k: future.result()["choices"][0]["text"] for k, future in asked.items()}
            assert found == alone
            for future in noise:
                future.result()


def test_gateway_health_02_a_huge_body_does_not_stop_the_others(server: Server) -> None:
    body = b'{"messages":[{"role":"user","content":"' + b"x" * 27_000_000 + b'"}]}'
    slowest = 0.0
    stop = threading.Event()

    def poll() -> None:
        nonlocal slowest
        with httpx.Client(base_url=server.url) as client:
            while not stop.wait(0.05):
                took = client.get("/health").elapsed.total_seconds()
                slowest = max(slowest, took)

    watcher = threading.Thread(target=poll)
    watcher.start()
    for _ in range(3):
        try:
            answer = server.client.post(CHAT, content=body)
            assert answer.status_code == 413
        except httpx.TransportError:
            pass  # refused and closed while the body was still being sent
    stop.set()
    watcher.join()
    assert slowest < 3.0 * SLOWNESS


def test_security_deserialization_02_internal_fields_are_not_taken(server: Server) -> None:
    for field in ("prompt_embeds", "kv_transfer_params", "chat_template", "chat_template_kwargs"):
        refused(server, CHAT, {"messages": USER_HI, field: {"x": 1}})


def test_security_template_01_a_template_in_the_request_is_refused(server: Server) -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    refused(server, CHAT, {"messages": USER_HI, "chat_template": loop})
    refused(server, CHAT, {"messages": USER_HI, "chat_template_kwargs": {"messages": []}})


def test_tools_json_03_a_bad_schema_or_pattern_is_a_400_and_harms_no_stream(
    server: Server,
) -> None:
    """Also while structured output is refused as a whole; a schema is never fetched."""
    alone = server.complete("Once upon a time", max_tokens=80)["choices"][0]["text"]
    deep = '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000
    with socket.create_server(("127.0.0.1", 0)) as canary, ThreadPoolExecutor(1) as pool:
        canary.setblocking(False)
        url = f"http://127.0.0.1:{canary.getsockname()[1]}/schema.json"
        schemas = [
            json.dumps(each)
            for each in (
                {"type": "object", "properties": {"size": "big"}},
                {"type": "string", "pattern": "ab**"},
                {"type": "string", "pattern": "(?<=x)a"},
                {"$ref": "#"},
                {"$ref": "#/$defs/missing"},
                {"$ref": url},
            )
        ]
        body = {"prompt": "Once upon a time", "max_tokens": 80}
        stream = pool.submit(lambda: list(server.iterate(COMPLETIONS, **body)))
        until(lambda: server.metrics()["vllm:num_requests_running"] >= 1, 5.0, "the stream runs")
        for schema in (*schemas, deep):
            shape = '{"type":"json_schema","json_schema":{"name":"s","schema":' + schema + "}}"
            content = '{"messages":[{"role":"user","content":"Hi"}],"response_format":' + shape
            began = time.monotonic()
            answer = server.client.post(CHAT, content=content + "}")
            assert time.monotonic() - began < 2.0 * SLOWNESS
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["message"]
        events = stream.result(timeout=60)
        assert "".join(each["choices"][0]["text"] for each in events) == alone
        with pytest.raises(BlockingIOError):
            canary.accept()


def test_cancel_03_a_cancelled_request_does_not_shorten_the_next(server: Server) -> None:
    expected = server.complete("The sky is", max_tokens=8)
    rng = random.Random(5)
    for _ in range(6):
        stop_after = rng.randrange(4)
        body = {"prompt": "Once upon a time", "max_tokens": 200, "stream": True}
        with server.client.stream("POST", COMPLETIONS, json=body) as answer:
            lines = answer.iter_lines()
            for _ in range(stop_after):
                next(lines)
        again = server.complete("The sky is", max_tokens=8)
        assert again["choices"] == expected["choices"]
    until(server.is_idle_and_clean, 5.0, "the cancelled requests are gone")
