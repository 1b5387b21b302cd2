"""The token streamer: from token ids to text that may leave now."""

import codecs
from typing import NamedTuple

from headway.core.messages.path import Sampling
from headway.core.text.stops import StopMatcher, Stopped
from headway.core.text.tokenizer import Decodes

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Streamed(NamedTuple):
    """Text of one step, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class TokenStreamer:
    """Text of one choice: never half a character, never part of a stop string.

    Tokens are bytes; a character may be spread over several. Bytes that can no longer
    become a character leave as U+FFFD, those that still can are held back. About 1 µs a
    token.
    """

    def __init__(self, tokenizer: Decodes, sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._decoder = _Utf8(errors="replace")
        self._matcher = StopMatcher(sampling.stop, keep_stop=sampling.include_stop)

    def push(self, token_id: int, *, may_stop: bool = True) -> Streamed:
        """Take the next token. With `may_stop` False no stop string is looked for yet."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return Streamed("")
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        return self._match(text) if may_stop else Streamed(text)

    def flush(self) -> Streamed:
        """The sequence has ended: all that was held back, half a character as U+FFFD."""
        last = self._match(self._decoder.decode(b"", final=True))
        return last if last.stop is not None else Streamed(last.text + self._matcher.flush())

    def _match(self, text: str) -> Streamed:
        result = self._matcher.push(text)
        if isinstance(result, Stopped):
            return Streamed(result.text, result.stop)
        return Streamed(result)
