"""`headway chat` and `complete` against a stand-in server on loopback."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headway.app.cli import main
from headway.app.client import AnswerFailed, Client
from headway.app.conversation import Conversation
from headway.core.base.errors import StartError

MODELS = b'{"data": [{"id": "m"}]}'


class Handler(BaseHTTPRequestHandler):
    """Streams the words of `answers`, or a status with an error."""

    answers: list[list[str]]
    asked: list[dict[str, Any]]
    keys: list[str | None]
    refusal: tuple[int, str] | None
    broken: bool

    def do_GET(self) -> None:
        """The list of models."""
        self._send(200, MODELS)

    def do_POST(self) -> None:
        """One answer, as events."""
        self.keys.append(self.headers.get("authorization"))
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({"path": self.path, **body})
        if self.refusal is not None:
            status, message = self.refusal
            return self._send(status, json.dumps({"error": {"message": message}}).encode())
        name = "delta" if "chat" in self.path else "text"
        pieces = self.answers.pop(0)
        events = [
            {"choices": [{name: {"content": piece} if name == "delta" else piece}]}
            for piece in pieces
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        lines.append('data: {"error": {"message": "it broke"}}\n\n' if self.broken else "")
        lines.append("data: [DONE]\n\n")
        self._send(200, ": keepalive\n\n".join(lines).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def upstream() -> Iterator[tuple[str, type[Handler]]]:
    handler = type(
        "Own",
        (Handler,),
        {"answers": [], "asked": [], "keys": [], "refusal": None, "broken": False},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


Upstream = tuple[str, type[Handler]]


def test_one_message_prints_its_answer_and_nothing_else(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = upstream
    handler.answers = [["Pa", "ris", "."]]
    options = ["--url", url, "--system", "Be brief.", "--temperature", "0", "--max-tokens", "5"]
    assert main(["chat", "Capital of France?", *options, "--api-key", "sk-x"]) == 0
    assert capsys.readouterr().out == "Paris.\n"
    assert handler.asked == [
        {
            "path": "/v1/chat/completions",
            "model": "m",
            "stream": True,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Capital of France?"},
            ],
            "temperature": 0.0,
            "max_tokens": 5,
        }
    ]
    assert handler.keys == ["Bearer sk-x"]


def test_piped_lines_are_one_chat(
    upstream: Upstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = upstream
    handler.answers = [["one"], ["two"]]
    monkeypatch.setattr("sys.stdin", io.StringIO("first\n\nsecond\n/exit\nnever\n"))
    assert main(["chat", "--url", url + "/v1/", "--model", "other"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert [len(body["messages"]) for body in handler.asked] == [1, 3]
    assert {body["model"] for body in handler.asked} == {"other"}


def test_prompts_are_continued(
    upstream: Upstream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = upstream
    handler.answers = [["x\n"]]
    monkeypatch.setattr("sys.stdin", io.StringIO("def f(\n  a"))
    assert main(["complete", "-", "--url", url, "--stop", "a", "--stop", "b"]) == 0
    assert capsys.readouterr().out == "x\n"
    assert handler.asked[0]["prompt"] == "def f(\n  a"
    assert handler.asked[0]["stop"] == ["a", "b"]


def test_a_refusal_is_told_and_is_a_failure(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = upstream
    handler.refusal = (400, "'temperature' must be less")
    assert main(["chat", "Hi", "--url", url]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "HTTP 400: 'temperature' must be less\n"


def test_an_answer_that_breaks_off_is_told_after_what_came(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = upstream
    handler.answers, handler.broken = [["Hel"]], True
    assert main(["chat", "Hi", "--url", url]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("Hel\n", "it broke\n")


def test_a_url_without_a_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "Hi", "--url", "http://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "headway serve" in error


def test_a_server_that_speaks_something_else_is_named(upstream: Upstream) -> None:
    url, handler = upstream
    handler.do_GET = lambda self: self._send(200, b"<html>")  # type: ignore[method-assign]
    with pytest.raises(StartError, match="OpenAI"):
        Client(url)


def test_ctrl_c_stops_the_answer_and_keeps_what_came(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.app.chat import Terminal

    url, handler = upstream
    handler.answers = [["Hel", "lo"], ["again"]]
    client = Client(url)
    out = Interrupting()
    monkeypatch.setattr(Conversation, "answered", spy := Spy())
    terminal = Terminal(client, {}, io.StringIO("Hi\nYou?\n"), out)
    assert terminal.chat(Conversation()) == 0
    assert spy.texts == ["Hel", "again"]
    client.close()


class Interrupting(io.StringIO):
    """The user presses Ctrl-C as soon as the first piece is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.pressed = False

    def flush(self) -> None:
        """The press."""
        if not self.pressed and self.getvalue():
            self.pressed = True
            raise KeyboardInterrupt


class Spy:
    """Notes what the conversation is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        self.texts.append(text)


def test_the_reason_in_an_error_without_a_shape_is_its_text(upstream: Upstream) -> None:
    url, handler = upstream
    handler.refusal = (502, "x")
    client = Client(url)
    with pytest.raises(AnswerFailed, match="HTTP 502"):
        list(client.complete("a", {}))
    client.close()
