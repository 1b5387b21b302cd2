"""A chat as `headway chat` keeps it: what was said, and what a line at the prompt means."""

from enum import Enum
from typing import Any, NamedTuple

HELP = """\
/system TEXT   a system message for what follows; without TEXT: none
/reset         forget what was said; the system message stays
/help          this list
/exit          end (also Ctrl-D)
Ctrl-C         stops an answer; what came of it stays in the chat"""


class Act(Enum):
    """What a line asks for."""

    ASK = "ask"
    SAY = "say"  # something to tell the user
    END = "end"
    NOTHING = "nothing"


class Reply(NamedTuple):
    """What to do after a line."""

    act: Act
    text: str = ""


class Conversation:
    """The messages of one chat."""

    def __init__(self, system: str = "") -> None:
        self._system = system
        self._said: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What the server is sent."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._said]

    def take(self, line: str) -> Reply:
        """A line at the prompt: a command, or the user's next message."""
        text = line.strip()
        if not text:
            return Reply(Act.NOTHING)
        if text.startswith("/"):
            return self._command(text)
        self.ask(text)
        return Reply(Act.ASK)

    def ask(self, text: str) -> None:
        """The user's next message, whatever it looks like."""
        self._said.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """The answer, or as much of it as came; without any, the question is withdrawn too."""
        if text:
            self._said.append({"role": "assistant", "content": text})
        else:
            self._said.pop()

    def _command(self, text: str) -> Reply:
        name, _, rest = text.partition(" ")
        if name == "/system":
            self._system = rest.strip()
            return Reply(Act.SAY, "system message set" if self._system else "no system message")
        if name == "/reset":
            self._said.clear()
            return Reply(Act.SAY, "a new chat")
        if name == "/help":
            return Reply(Act.SAY, HELP)
        if name in {"/exit", "/quit", "/bye"}:
            return Reply(Act.END)
        return Reply(Act.SAY, f"{name} is no command; /help lists them")
