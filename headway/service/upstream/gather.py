"""A stream of another server, put together to the answer that its client asked for at once.

So its first token is seen when it comes, though the client sees nothing before the end.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.core.messages.path import Usage
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.upstream.answers import usage_body

OBJECTS = {"chat.completion.chunk": "chat.completion"}
# With these a server sends its answer in one piece, or in a form that is not put together here.
UNSTREAMED = ("use_beam_search", "best_of", "modalities", "audio")
BOTH = ("tools", "logprobs")  # llama.cpp streams no answer that may call tools and is scored
PREFIX = b"data: "

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def as_stream(request: ForwardedRequest) -> ForwardedRequest | None:
    """The same request, streamed; None for one whose answer cannot be put together."""
    fields = request.fields
    if any(fields.get(name) for name in UNSTREAMED) or all(fields.get(name) for name in BOTH):
        return None
    return msgspec.structs.replace(request, stream=True, fields={**fields, "stream": True})


class Gathered:
    """Chunks in, one answer out."""

    def __init__(self) -> None:
        self.size = 0  # bytes that came
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def feed(self, events: bytes) -> None:
        """Some whole events, as `StreamedAnswer.take` gives them."""
        self.size += len(events)
        for line in events.splitlines():
            if line.startswith(PREFIX):
                self._take(_decode(line[len(PREFIX) :]))

    def body(self, usage: Usage) -> bytes:
        """The answer."""
        shown = OBJECTS.get(self._top.get("object", ""), "text_completion")
        choices = [self._choices[index] for index in sorted(self._choices)]
        whole = {**self._top, "object": shown, "choices": choices, "usage": usage_body(usage)}
        return _encode(whole)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        for name, value in chunk.items():
            if name not in {"choices", "usage"} and (value is not None or name not in self._top):
                self._top[name] = value
        for part in chunk.get("choices") or ():
            index = part.get("index", 0)
            choice = self._choices.setdefault(index, {"index": index})
            for name, value in part.items():
                if name == "delta":
                    message = choice.setdefault("message", {"role": "assistant", "content": None})
                    _join(message, value or {})
                else:
                    _join(choice, {name: value})


def _join(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Texts go on, lists grow, what is inside is joined in its turn; else what came last is so."""
    for name, value in part.items():
        old = whole.get(name)
        if name == "tool_calls" and isinstance(value, list):
            whole[name] = _calls(old or [], value)
        elif type(old) is type(value) and isinstance(value, str | list) and name not in FIXED:
            whole[name] += value
        elif isinstance(old, dict) and isinstance(value, dict):
            _join(old, value)
        elif value is not None or name not in whole:
            whole[name] = value


# Texts that are told whole, and may be told again.
FIXED = frozenset({"role", "finish_reason", "stop_reason", "id", "type", "name"})


def _calls(old: list[dict[str, Any]], parts: list[Any]) -> list[dict[str, Any]]:
    """Calls of tools: each part says which one it belongs to."""
    for part in parts:
        if not isinstance(part, dict):
            continue
        place = part.get("index", len(old))
        fields = {name: value for name, value in part.items() if name != "index"}
        if isinstance(place, int) and 0 <= place < len(old):
            _join(old[place], fields)
        else:
            old.append(fields)
    return old
