"""`headway bench serve` against a small server inside the test."""

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from headway.app.bench import add_arguments, run


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish_reason}])


def usage_event(prompt_tokens: int, completion_tokens: int) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event(choices=[], usage=usage)


class SseServer(ThreadingHTTPServer):
    """Answers every completion with `answer`, after the trial request with `later`."""

    answer: bytes = (
        b": keepalive\n\n"
        + text_event("a")
        + text_event("b")
        + text_event("", "length")
        + usage_event(8, 3)
        + b"data: [DONE]\n\n"
    )
    later: bytes | None = None
    status = 200
    models: bytes = b'{"data": [{"id": "tiny"}]}'

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: SseServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        is_trial = not server.bodies
        server.bodies.append(body)
        server.paths.append(self.path)
        server.keys.append(self.headers["Authorization"])
        self.reply(server.status, server.answer if is_trial else server.later or server.answer)

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        # In two parts, cut inside a line, as the network may cut it.
        self.wfile.write(body[:30])
        self.wfile.flush()
        self.wfile.write(body[30:])


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def bench(server: SseServer, line: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    base = f"--port {server.server_port} --disable-tqdm --random-input-len 8 "
    return run(parser.parse_args((base + line).split()))


def test_every_request_is_sent_and_the_table_shows_what_came_back(
    server: SseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server, "--num-prompts 5 --random-output-len 3 --ignore-eos --api-key k") == 0
    out = capsys.readouterr().out
    for line in ("Successful requests: 5", "Total input tokens: 40", "Total generated tokens: 15"):
        assert line in " ".join(out.split())
    assert len(server.bodies) == 6, "five and the trial"
    assert set(server.paths) == {"/v1/completions"}
    assert set(server.keys) == {"Bearer k"}
    body = server.bodies[1]
    assert len(body.pop("prompt")) == 8
    assert body == {
        "model": "tiny",
        "max_tokens": 3,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_same_seed_sends_the_same_prompts(server: SseServer) -> None:
    assert bench(server, "--num-prompts 2 --seed 4") == 0
    assert bench(server, "--num-prompts 2 --seed 4") == 0
    first, second = server.bodies[:3], server.bodies[3:]
    key = json.dumps
    assert sorted(map(key, first)) == sorted(map(key, second))


def test_a_rate_and_a_limit_on_concurrency_still_send_everything(server: SseServer) -> None:
    assert bench(server, "--num-prompts 6 --request-rate 500 --max-concurrency 2") == 0
    assert len(server.bodies) == 7


def test_the_result_file_has_figures_options_and_metadata(
    server: SseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"--num-prompts 2 --save-result --result-dir {tmp_path / 'new'} --metadata machine=m1"
    assert bench(server, line) == 0
    (file,) = (tmp_path / "new").iterdir()
    assert file.name.startswith("openai-infqps-tiny-")
    assert str(file) in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"]) == (2, 0)
    assert (result["model_id"], result["request_rate"], result["machine"]) == ("tiny", "inf", "m1")
    assert result["mean_ttft_ms"] <= result["mean_e2el_ms"]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (text_event("a") + event(error={"message": "engine lost"}), "engine lost"),
        (text_event("a"), "the stream ended without a finish_reason"),
        (b"data: {\n\n", "DecodeError"),
    ],
    ids=["error event", "cut short", "not JSON"],
)
def test_a_broken_stream_counts_as_failed_and_is_named(
    server: SseServer, capsys: pytest.CaptureFixture[str], later: bytes, message: str
) -> None:
    server.later = later
    assert bench(server, "--num-prompts 2") == 1
    out = capsys.readouterr().out
    assert "Failed requests: 2" in " ".join(out.split())
    assert message in out


def test_an_answer_without_text_counts_with_its_tokens(
    server: SseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.later = text_event("", "stop") + usage_event(8, 1) + b"data: [DONE]\n\n"
    assert bench(server, "--num-prompts 2") == 0
    assert "Total generated tokens: 2" in " ".join(capsys.readouterr().out.split())


def test_a_refused_trial_ends_the_run_with_the_servers_words(
    server: SseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status, server.answer = 404, b'{"error": {"message": "no such model"}}'
    assert bench(server, "--num-prompts 50 --model other") == 2
    assert "HTTP 404" in (err := capsys.readouterr().err)
    assert "no such model" in err
    assert len(server.bodies) == 1


def test_a_server_that_does_not_answer_is_named(
    server: SseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server, "--base-url http://127.0.0.1:1") == 2
    assert "no server answers at http://127.0.0.1:1/v1/models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "message"),
    [(b'{"data": []}', "lists no model; give --model"), (b"<html>", "gives no list of models")],
)
def test_a_server_without_a_model_to_take_is_named(
    server: SseServer, capsys: pytest.CaptureFixture[str], models: bytes, message: str
) -> None:
    server.models = models
    assert bench(server, "--num-prompts 1") == 2
    assert message in capsys.readouterr().err


def word_tokenizer(folder: Path) -> Path:
    words = {a + b: n for n, (a, b) in enumerate((a, b) for a in "bdfgk" for b in ("an", "it"))}
    tokenizer = Tokenizer(WordLevel(words | {"<unk>": 10}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["<unk>"])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_chat_sends_text_of_the_exact_length(server: SseServer, tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path)
    server.answer = event(
        choices=[{"delta": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]
    )
    assert bench(server, f"--backend openai-chat --num-prompts 2 --tokenizer {path.parent}") == 0
    assert set(server.paths) == {"/v1/chat/completions"}
    (message,) = server.bodies[1]["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 8


def test_with_a_tokenizer_random_ids_are_those_of_plain_tokens(
    server: SseServer, tmp_path: Path
) -> None:
    line = f"--num-prompts 3 --random-input-len 50 --tokenizer {word_tokenizer(tmp_path)}"
    assert bench(server, line) == 0
    assert {i for body in server.bodies for i in body["prompt"]} == set(range(10))


def test_chat_without_a_tokenizer_is_refused_with_the_way_out(
    server: SseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server, "--backend openai-chat") == 2
    assert "--backend openai needs none" in capsys.readouterr().err


def test_sharegpt_conversations_are_sent(server: SseServer, tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text('[{"conversations": [{"value": "Hi there"}, {"value": "Hello"}]}]')
    line = f"--dataset-name sharegpt --dataset-path {path} --sharegpt-output-len 4 --num-prompts 2"
    assert bench(server, line) == 0
    assert {(body["prompt"], body["max_tokens"]) for body in server.bodies} == {("Hi there", 4)}


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "not a tokenizer"])
def test_a_bad_tokenizer_file_is_named(
    server: SseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    assert bench(server, f"--tokenizer {path}") == 2
    assert str(path) in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_named(
    server: SseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    line = f"--num-prompts 1 --save-result --result-dir {tmp_path / 'file'}"
    assert bench(server, line) == 2
    assert "--result-dir: cannot write" in capsys.readouterr().err
