"""Two models in one server, with the real `openai` client: neither is in the other's way."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.server import Server, until

Start = Callable[..., Server]
SMALL = ("--max-model-len", "512", "--kv-cache-memory-bytes", "32M", "--threads", "1")
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
ENGINE = "headway.app.replica"


@pytest.fixture
def serve_two(tmp_path: Path, smollm2_path: str) -> Iterator[Start]:
    """A server of the model as `a`, loaded at start, and as `b` (alias `bee`), on demand."""
    started: list[Server] = []

    def start(b: str = "load=demand", *options: str) -> Server:
        second = f"{smollm2_path},served-model-name=b,served-model-name=bee,{b}"
        first = f"{smollm2_path},served-model-name=a"
        server = Server(tmp_path, first, "--model", second, *SMALL, *options)
        started.append(server)
        return server.wait_ready()

    yield start
    for server in started:
        server.stop()


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def engines(server: Server) -> list[psutil.Process]:
    """Engine processes, the oldest first."""
    found = [child for child in server.children() if ENGINE in child.cmdline()]
    return sorted(found, key=psutil.Process.create_time)


def say(api: openai.OpenAI, model: str, tokens: int = 12) -> str:
    """A greedy answer."""
    answer = api.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_completion_tokens=tokens,
        temperature=0,
    )
    assert answer.model == model
    return answer.choices[0].message.content or ""


def streamed(api: openai.OpenAI, model: str, tokens: int) -> Iterator[str]:
    """The same as it comes, of a text that goes on."""
    stream = api.completions.create(
        model=model,
        prompt="Once upon a time",
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        if chunk.choices:
            yield chunk.choices[0].text


def state_of(server: Server, model: str) -> str:
    """As /v1/models tells it."""
    return str(server.client.get(f"/v1/models/{model}").json()["state"])


class Asked(threading.Thread):
    """A request under way in a thread of its own."""

    def __init__(self, ask: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.text: str | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Ask, and keep what comes of it."""
        try:
            self.text = self._ask()
        except openai.OpenAIError as error:
            self.error = error

    def answer(self) -> str:
        """What came; fails when it took too long or went wrong."""
        self.join(120.0)
        assert self.error is None, self.error
        assert self.text is not None, "no answer in time"
        return self.text


def test_both_are_listed_one_loads_on_demand_and_each_answers_by_its_names(
    serve_two: Start,
) -> None:
    server = serve_two()
    with client(server) as api:
        assert [model.id for model in api.models.list()] == ["a", "b", "bee"]
        assert len(engines(server)) == 1
        assert (state_of(server, "a"), state_of(server, "b")) == ("ready", "unloaded")
        assert server.client.get("/ready").json()["models"]["b"]["state"] == "unloaded"
        texts = {name: say(api, name) for name in ("bee", "b", "a")}
        assert len(set(texts.values())) == 1  # it is the same file
        assert len(engines(server)) == 2
        assert state_of(server, "b") == "ready"
        with pytest.raises(openai.NotFoundError, match=r"Served: a, b, bee\."):
            say(api, "c")
        now = server.metrics()
        assert now['headway_model_loads_total{model="b",outcome="ok"}'] == 1
        assert (
            now['headway_requests_total{endpoint="chat_completions",model="b",outcome="ok"}'] == 2
        )
        assert (
            now['headway_requests_total{endpoint="chat_completions",model="a",outcome="ok"}'] == 1
        )
        assert now['headway_engine_ready{model="b"}'] == 1


def test_while_one_loads_the_other_answers_and_who_waits_gets_the_answer(
    serve_two: Start,
) -> None:
    server = serve_two()
    with client(server) as api:
        waits = Asked(lambda: say(api, "b"))
        until(lambda: len(engines(server)) == 2, 30.0, "b's engine is being started")
        loading = engines(server)[1]
        loading.suspend()  # for as long as it takes us to look
        try:
            text = say(api, "a")
            assert state_of(server, "b") == "starting"
            assert server.client.get("/ready").status_code == 200
            until(
                lambda: server.metrics()['headway_model_load_waiting_requests{model="b"}'] == 1,
                10.0,
                "the request waits",
            )
            assert waits.is_alive()
        finally:
            loading.resume()
        assert waits.answer() == text


def test_an_idle_model_gives_its_memory_back_and_is_there_again_when_asked(
    serve_two: Start,
) -> None:
    server = serve_two("load=demand,idle-unload=0.5")
    with client(server) as api:
        text = say(api, "b")
        for number in (1, 2):
            until(lambda: state_of(server, "b") == "unloaded", 30.0, "b is unloaded")
            assert len(engines(server)) == 1
            assert server.metrics()['headway_model_unloads_total{model="b"}'] == number
            assert say(api, "b") == text
        assert say(api, "a") == text
        assert server.metrics()['headway_engine_restarts_total{model="b"}'] == 0


def test_no_answer_is_lost_to_an_idle_time_shorter_than_the_answer(serve_two: Start) -> None:
    server = serve_two("load=demand,idle-unload=0.05")
    with client(server) as api:
        wanted = "".join(streamed(api, "a", 60))
        asked = [Asked(lambda: "".join(streamed(api, "b", 60))) for _ in range(3)]
        assert {each.answer() for each in asked} == {wanted}
        until(lambda: state_of(server, "b") == "unloaded", 30.0, "b is unloaded")


def test_an_engine_killed_by_kill_9_is_replaced_and_the_other_s_stream_goes_on(
    serve_two: Start,
) -> None:
    server = serve_two()
    with client(server) as api:
        wanted = "".join(streamed(api, "a", 200))
        say(api, "b")
        first, second = engines(server)
        doomed = streamed(api, "b", 300)
        next(doomed)
        stream = streamed(api, "a", 200)
        begun = [next(stream) for _ in range(5)]
        second.send_signal(signal.SIGKILL)
        with pytest.raises(openai.APIError, match="killed by signal SIGKILL"):
            list(doomed)
        assert say(api, "b")  # waits for the new engine
        assert "".join([*begun, *stream]) == wanted
        assert first.is_running()
        assert [process.pid for process in engines(server)] != [first.pid, second.pid]
        now = server.metrics()
        assert now['headway_engine_restarts_total{model="b"}'] == 1
        assert now['headway_engine_restarts_total{model="a"}'] == 0


def test_a_server_without_patience_tells_when_to_come_again(serve_two: Start) -> None:
    server = serve_two("load=demand,load-wait=0")
    body = {"model": "b", "messages": QUESTION, "max_tokens": 4}
    refused = server.post("/v1/chat/completions", body)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_not_ready"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    until(lambda: state_of(server, "b") == "ready", 60.0, "b has loaded")
    assert server.post("/v1/chat/completions", body).status_code == 200


def test_models_that_do_not_fit_this_machine_together_end_the_start_with_one_line(
    tmp_path: Path, smollm2_path: str
) -> None:
    second = f"{smollm2_path},served-model-name=b,kv-cache-memory-bytes=9000G"
    server = Server(tmp_path, f"{smollm2_path},served-model-name=a", "--model", second)
    assert server.process.wait(60) == 2
    server.client.close()
    (said,) = server.log.read_text().splitlines()
    assert said.startswith("headway serve: models[1] (b): kv_cache_memory_bytes: 9663676416000 is ")
    assert "or less" in said


def test_sigterm_ends_every_engine_and_lets_streams_of_each_finish(serve_two: Start) -> None:
    server = serve_two()
    with client(server) as api:
        say(api, "b")
        processes = engines(server)
        asked = [Asked(lambda name=name: "".join(streamed(api, name, 80))) for name in "ab"]  # type: ignore[misc]  # a loop's lambda
        until(lambda: server.metrics()["headway_requests_in_flight"] == 2, 10.0, "both run")
        server.process.send_signal(signal.SIGTERM)
        texts = {each.answer() for each in asked}
        assert len(texts) == 1
    assert server.stop() == 0
    assert not any(process.is_running() for process in processes)


def test_the_configuration_in_the_document_serves_as_it_says(
    tmp_path: Path, smollm2_path: str
) -> None:
    document = (Path(__file__).parents[2] / "docs" / "several-models.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    assert "port: 8000" in text
    for name in ("small.gguf", "large.gguf"):
        (tmp_path / name).symlink_to(smollm2_path)
        text = text.replace(f"model: {name}", f"model: {tmp_path / name}")
    file = tmp_path / "headway.yaml"
    file.write_text(text)
    server = Server(tmp_path, None, "--config", str(file), "--threads", "1")
    try:
        with client(server.wait_ready()) as api:
            assert [model.id for model in api.models.list()] == ["small", "default", "large"]
            assert say(api, "default")
            assert say(api, "large")
            told = {entry["id"]: entry for entry in server.client.get("/v1/models").json()["data"]}
            assert told["large"]["max_model_len"] == 4096
    finally:
        assert server.stop() == 0
