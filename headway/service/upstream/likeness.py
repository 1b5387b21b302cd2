"""Chunks of one answer that differ in nothing but their text, changed without being decoded.

A server writes all chunks of an answer with the same code: what stands before and behind the text
is the same, byte for byte. Once one of them was decoded and written anew, the next ones are made
from its two halves.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

# The inside of a JSON string that needs no look at it: no quote, no escape, no control character.
PLAIN = re.compile(rb'[^\x00-\x1f"\\]+')
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")
ENDS_OR_LISTS = ("finish_reason", "logprobs", "token_ids")  # of a choice: more than its text
PROBE = "?"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

Chunk = Mapping[str, Any]


class Gain(NamedTuple):
    """What one choice got of one event."""

    choice: int
    num_tokens: int


class Likeness(NamedTuple):
    """What stands around the text: as the server writes it, and as the client gets it."""

    gain: Gain  # of each such chunk
    begin: bytes
    end: bytes
    our_begin: bytes
    our_end: bytes

    def rewritten(self, data: bytes) -> bytes:
        """The chunk for the client; b"" where it differs in more than one plain text."""
        begin, end = self.begin, self.end
        if not (data.startswith(begin) and data.endswith(end)):
            return b""
        text = data[len(begin) : len(data) - len(end)]
        if PLAIN.fullmatch(text) is None or not (text.isascii() or _is_utf8(text)):
            return b""
        return self.our_begin + text + self.our_end


def likeness_of(data: bytes, chunk: Chunk, written: Callable[[Chunk], bytes]) -> Likeness | None:
    """What this chunk teaches of the next ones; None if it is not text alone.

    data     as it came; `chunk` is what it says
    written  the event that a client gets for a chunk
    """
    found = _text_of(chunk)
    if found is None:
        return None
    choice, holder, key = found
    text = holder[key]
    halves = _around(data, key, text)
    if halves is None or _decode(halves[0] + PROBE.encode() + halves[1]) != _with(chunk, PROBE):
        return None
    ours = _around(written(chunk), key, text)
    return None if ours is None else Likeness(Gain(choice, 1), *halves, *ours)


def _text_of(chunk: Chunk) -> tuple[int, dict[str, Any], str] | None:
    """Choice, and where its text stands, in a chunk that brings one choice one text."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or chunk.get("usage") is not None:
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or any(choice.get(name) for name in ENDS_OR_LISTS):
        return None
    index, holder = choice.get("index", 0), choice.get("delta", choice)
    if not isinstance(index, int) or not isinstance(holder, dict):
        return None
    told = [name for name, value in holder.items() if value and name != "index"]
    is_text = len(told) == 1 and told[0] in TEXT_KEYS and isinstance(holder[told[0]], str)
    return (index, holder, told[0]) if is_text else None


def _around(data: bytes, key: str, text: str) -> tuple[bytes, bytes] | None:
    """The bytes before and behind the one text under that key, if it is written plainly."""
    parts = re.split(rb'("%b"\s*:\s*")%b(?=")' % (key.encode(), re.escape(text.encode())), data)
    return (parts[0] + parts[1], parts[2]) if len(parts) == 3 else None


def _with(chunk: Chunk, text: str) -> Chunk:
    """A copy of the chunk with this text in place of its own."""
    copy: dict[str, Any] = _decode(_encode(chunk))
    found = _text_of(copy)
    assert found is not None, "the same as of the chunk"
    _, holder, key = found
    holder[key] = text
    return copy


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
