"""`headway chat` and `headway complete`: a model in the terminal."""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from headway.app.client import AnswerFailed, Client, key_from
from headway.app.conversation import Act, Conversation
from headway.app.models import pull_builtin
from headway.app.served import FREE_PORT, SERVE, running_server
from headway.core.base.errors import StartError

EXIT_OK, EXIT_FAILED = 0, 1
PROMPT = "> "


def add_arguments(parser: argparse.ArgumentParser, *, is_chat: bool) -> None:
    """The options of both commands."""
    what = "message" if is_chat else "prompt"
    parser.add_argument(
        "text",
        nargs="?",
        metavar=what.upper(),
        help=f"one {what}: its answer is printed, and that is all; - reads it from the standard "
        f"input (default: ask for {what}s until Ctrl-D)",
    )
    parser.add_argument(
        "--url", default="", help="server to use (default: one for the time of this command)"
    )
    parser.add_argument(
        "--model",
        default="",
        help="with --url: a name of a served model; without: a model's file (default: the "
        "server's first, the built-in one)",
    )
    parser.add_argument("--cache-dir", default="", help="folder for downloaded models")
    parser.add_argument("--api-key", default=None, help="key for --url (default: OPENAI_API_KEY)")
    parser.add_argument("--max-tokens", type=int, default=None, help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, default=None, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=None)
    parser.add_argument("--seed", type=int, default=None)
    if is_chat:
        parser.add_argument("--system", default="", metavar="TEXT", help="a system message")
    else:
        parser.add_argument(
            "--stop", action="append", default=None, metavar="TEXT", help="may be given again"
        )


def run(chosen: argparse.Namespace, *, is_chat: bool) -> int:
    """The whole command; raises StartError when there is no server to talk to."""
    options = _options(chosen)
    with _client(chosen) as client:
        terminal = Terminal(client, options, sys.stdin, sys.stdout)
        if is_chat:
            return terminal.chat(Conversation(chosen.system), _text(chosen))
        return terminal.complete(_text(chosen))


class Terminal:
    """Reads lines, prints answers as they come; Ctrl-C stops an answer and not the program."""

    def __init__(
        self, client: Client, options: dict[str, Any], source: TextIO, out: TextIO
    ) -> None:
        self._client = client
        self._options = options
        self._source = source
        self._out = out
        self._is_asking = source.isatty() and out.isatty()

    def chat(self, chat: Conversation, message: str | None = None) -> int:
        """One message, or a chat until its end; the exit code."""
        if message is not None:
            chat.ask(message)
            return self._print(self._client.chat(chat.messages, self._options))[1]
        code = EXIT_OK
        self._say(f"{self._client.model}; /help lists the commands")
        for line in self._lines():
            act, told = chat.take(line)
            if act is Act.END:
                break
            if act is Act.SAY:
                self._say(told)
            if act is Act.ASK:
                text, code = self._print(self._client.chat(chat.messages, self._options))
                chat.answered(text)
        return EXIT_OK if self._is_asking else code

    def complete(self, prompt: str | None = None) -> int:
        """One prompt, or each line until the end; the exit code."""
        if prompt is not None:
            return self._print(self._client.complete(prompt, self._options))[1]
        code = EXIT_OK
        for line in self._lines():
            if line.strip():
                _, code = self._print(self._client.complete(line, self._options))
        return EXIT_OK if self._is_asking else code

    def _print(self, pieces: Iterator[str]) -> tuple[str, int]:
        """The text as far as it came, and the exit code for it."""
        said: list[str] = []
        code = EXIT_OK
        try:
            for piece in pieces:
                said.append(piece)
                self._out.write(piece)
                self._out.flush()
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]  # a generator; the server then stops too
            code = EXIT_FAILED
        except AnswerFailed as error:
            print(f"{error}", file=sys.stderr)
            code = EXIT_FAILED
        text = "".join(said)
        if said and not text.endswith("\n"):
            self._out.write("\n")
        self._out.flush()
        return text, code

    def _lines(self) -> Iterator[str]:
        """Lines of the user; Ctrl-C drops the one being typed, Ctrl-D ends them."""
        if not self._is_asking:
            yield from self._source
            return
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # its import alone lets `input` edit lines
        while True:
            try:
                yield input(PROMPT)
            except KeyboardInterrupt:
                self._say("")
            except EOFError:
                self._say("")
                return

    def _say(self, text: str) -> None:
        """For people only: what is piped elsewhere holds answers and nothing else."""
        if self._is_asking:
            print(text, file=self._out)


@contextmanager
def _client(chosen: argparse.Namespace) -> Iterator[Client]:
    key = key_from() if chosen.api_key is None else chosen.api_key
    if chosen.url:
        with closing(Client(chosen.url, api_key=key, model=chosen.model)) as client:
            yield client
        return
    cache = Path(chosen.cache_dir) if chosen.cache_dir else None
    model = chosen.model or pull_builtin(cache)
    print(
        "starting a server for this chat; a first start compiles its kernels ...", file=sys.stderr
    )
    options = ["--log-level", "error", "--model", model]
    if chosen.cache_dir:
        options += ["--cache-dir", chosen.cache_dir]
    with (
        running_server((*SERVE, *FREE_PORT, *options)) as served,
        closing(Client(served.base_url)) as client,
    ):
        yield client


def _text(chosen: argparse.Namespace) -> str | None:
    if chosen.text != "-":
        return str(chosen.text) if chosen.text is not None else None
    text = sys.stdin.read()
    if not text.strip():
        raise StartError("the standard input is empty; there is nothing to answer")
    return text


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    names: Sequence[str] = ("max_tokens", "temperature", "top_p", "seed", "stop")
    given = {name: getattr(chosen, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}
