"""One Headway in front of another, with the built-in model and the real openai client."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e.server import Server, finish_reasons, text_of, until

CONFIG = """\
models:
  - served_model_name: [front, front-alias]
    upstream:
      url: {url}
      kind: {kind}
      model: {model}
"""
KINDS = ("headway", "openai")


@contextmanager
def in_front_of(server: Server, kind: str, folder: Path) -> Iterator[Server]:
    """A gateway without an engine."""
    model = server.client.get("/v1/models").json()["data"][0]["id"]
    config = folder / "headway.yaml"
    config.write_text(CONFIG.format(url=server.url, model=model, kind=kind))
    made = Server(folder, None, "--config", str(config)).wait_ready(30)
    try:
        yield made
    finally:
        assert made.stop() == 0


@pytest.fixture(scope="module", params=KINDS)
def shared_front(
    request: pytest.FixtureRequest,
    shared_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("front")
    with in_front_of(shared_server, request.param, folder) as made:
        yield made


@pytest.fixture
def front(shared_front: Server, server: Server) -> Iterator[Server]:
    """The same; afterwards it and the server behind it hold nothing."""
    yield shared_front
    until(lambda: shared_front.metrics()["headway_requests_in_flight"] == 0, 5.0, "it is idle")


def tokens_of(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Without those from the cache, which the second of two equal prompts finds warm."""
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def test_a_gateway_of_upstreams_alone_starts_no_engine_and_loads_no_model(front: Server) -> None:
    until(lambda: front.children() == [], 10, "only the tables of its ledger are made by a child")
    opened = {each.path for each in psutil.Process(front.process.pid).open_files()}
    assert not any(path.endswith(".gguf") for path in opened)
    assert psutil.Process(front.process.pid).memory_info().rss < 160 * 2**20


def test_answers_are_the_same_through_both(server: Server, front: Server) -> None:
    direct, through = server.chat("Name a colour."), front.chat("Name a colour.")
    assert through["choices"] == direct["choices"]
    assert tokens_of(through) == tokens_of(direct)
    assert through["model"] == "front"
    assert through["id"] != direct["id"]
    path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}
    options = {"stream_options": {"include_usage": True}, "max_tokens": 8}
    one = server.stream(path, **body, **options)
    two = front.stream(path, **body, **options)
    assert text_of(two) == text_of(one)
    assert finish_reasons(two) == finish_reasons(one)
    assert tokens_of(two[-1]) == tokens_of(one[-1])
    assert front.complete()["choices"] == server.complete()["choices"]


def test_the_openai_client_works_through_it(front: Server) -> None:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none") as client:
        assert [each.id for each in client.models.list()] == ["front", "front-alias"]
        messages = [{"role": "user", "content": "Say hello."}]
        whole = client.chat.completions.create(
            model="front-alias",
            messages=messages,  # type: ignore[arg-type]  # plain dicts, as users write them
            max_tokens=8,
            temperature=0,
            n=2,
        )
        assert whole.model == "front-alias"
        assert len(whole.choices) == 2
        stream = client.chat.completions.create(
            model="front",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        assert isinstance(stream, openai.Stream)
        pieces = [each.choices[0].delta.content or "" for each in stream if each.choices]
        assert "".join(pieces) == whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(
                model="front",
                messages=messages,  # type: ignore[arg-type]
                temperature=9,
            )
        assert raised.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="none", messages=messages)  # type: ignore[arg-type]


def test_a_reader_that_leaves_frees_the_engine_behind(server: Server, front: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}
    body |= {"max_tokens": 1500, "stream": True}
    with front.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()  # kept: without it the connection is closed
        next(lines)
        assert not server.is_idle_and_clean()
        assert next(lines) is not None
    until(server.is_idle_and_clean, 5.0, "the engine behind is idle")
    until(lambda: front.metrics()["headway_requests_in_flight"] == 0, 5.0, "the gateway is idle")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_lets_what_is_under_way_end(kind: str, server: Server, tmp_path: Path) -> None:
    texts: list[str] = []
    begun = threading.Event()

    def read(front: Server) -> None:
        body = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}
        for event in front.iterate("/v1/chat/completions", **body, max_tokens=64):
            begun.set()
            texts.append(text_of([event]))

    with in_front_of(server, kind, tmp_path) as front:
        reader = threading.Thread(target=read, args=(front,))
        reader.start()
        assert begun.wait(60)
        front.process.terminate()
        reader.join(60)
        assert not reader.is_alive()
        assert len("".join(texts)) > 0
        assert front.process.wait(60) == 0
