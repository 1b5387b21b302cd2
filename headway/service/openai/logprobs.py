"""Which bytes of the answer each token stands for, and when its entry may leave.

Text may be held back (half a character, the beginning of a stop string) or cut (a stop
string), while log-probabilities come with the token. An entry leaves only once all of its
characters have left, so that a stream never tells more than the text does, and what a stop
cut off is taken from the entry's bytes.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.messages.path import LOGPROB_FLOOR, TokenLogprob
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai.answer_schema import (
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    TopLogprob,
)
from headway.service.openai.schema import MAX_LOGPROBS

_Decoder = codecs.getincrementaldecoder("utf-8")


class Entry(NamedTuple):
    """One token of an answer: what it scored, its bytes in the text, where they start."""

    token_id: int
    logprob: float | None  # None only for the first token of an echoed prompt
    top: tuple[tuple[int, float], ...]
    raw: bytes
    offset: int  # characters from the start of the text


class _Pending(NamedTuple):
    entry: Entry
    end: int  # characters from the start of the text, half ones not counted
    state: tuple[bytes, int]  # of the decoder before this token


class EntryTracker:
    """Entries of one choice, from tokens and the number of characters that have left."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, offset: int, num_top: int = MAX_LOGPROBS
    ) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._skip_special = skip_special
        self._decoder = _Decoder("replace")
        self._chars = offset
        self._pending: deque[_Pending] = deque()

    def add(self, scored: TokenLogprob) -> None:
        """One more token; its entry waits for `release`."""
        is_hidden = self._skip_special and self._tokenizer.is_special(scored.token_id)
        raw = b"" if is_hidden else self._tokenizer.token_bytes(scored.token_id)
        top = scored.top[: self._num_top]
        entry = Entry(scored.token_id, finite(scored.logprob), top, raw, self._chars)
        state = self._decoder.getstate()
        self._chars += len(self._decoder.decode(raw))
        self._pending.append(_Pending(entry, self._chars, state))

    def release(self, num_left: int) -> list[Entry]:
        """Entries whose characters are among the first `num_left` of the text."""
        out = []
        while self._pending and self._pending[0].end <= num_left:
            out.append(self._pending.popleft().entry)
        return out

    def finish(self, num_left: int, is_cut: bool, has_end_token: bool) -> list[Entry]:
        """All other entries; with `is_cut` less the bytes that are not in the text.

        `has_end_token` says that the last token ended the choice and gave no text.
        """
        if has_end_token and self._pending:
            last = self._pending.pop()
            start = last.entry.offset
            self._pending.append(_Pending(last.entry._replace(raw=b""), start, last.state))
        out = self.release(num_left)
        for entry, _, state in self._pending:
            raw = entry.raw
            if is_cut:
                raw = raw[: _num_kept(raw, state, entry.offset, num_left)]
            out.append(entry._replace(raw=raw, offset=min(entry.offset, num_left)))
        self._pending.clear()
        return out


def _num_kept(raw: bytes, state: tuple[bytes, int], chars: int, num_left: int) -> int:
    """How many of a token's bytes belong to the first `num_left` characters."""
    decoder = _Decoder("replace")
    decoder.setstate(state)
    kept = 0
    for i in range(len(raw)):
        chars += len(decoder.decode(raw[i : i + 1]))
        if chars > num_left:
            break
        if not decoder.getstate()[0]:
            kept = i + 1
    return kept


def finite(logprob: float) -> float:
    """The value, or LOGPROB_FLOOR for anything below it and for NaN."""
    return logprob if logprob > LOGPROB_FLOOR else LOGPROB_FLOOR


def prompt_entries(
    prompt: Sequence[int],
    text: str,
    scored: Sequence[TokenLogprob | None],
    tokenizer: Tokenizer,
) -> list[Entry]:
    """Entries of an echoed prompt of that text; `scored` is empty or one a token."""
    raws = [tokenizer.token_bytes(token_id) for token_id in prompt]
    # A start token that the model's rule put first is not part of the text.
    if raws and tokenizer.is_special(prompt[0]) and _decode(raws[1:]) == text:
        raws[0] = b""
    decoder = _Decoder("replace")
    entries, chars = [], 0
    for i, (token_id, raw) in enumerate(zip(prompt, raws, strict=True)):
        score = scored[i] if i < len(scored) else None
        logprob = None if score is None else finite(score.logprob)
        top = () if score is None else score.top
        entries.append(Entry(token_id, logprob, top, raw, min(chars, len(text))))
        chars += len(decoder.decode(raw))
    return entries


def fewer(scored: TokenLogprob, num_top: int) -> TokenLogprob:
    """With no more candidates than that: prompt and answer share the larger number."""
    return TokenLogprob(scored.token_id, scored.logprob, scored.top[:num_top])


def prompt_logprobs(
    scored: Sequence[TokenLogprob | None], tokenizer: Tokenizer
) -> list[dict[str, PromptLogprob] | None]:
    """The shape of `prompt_logprobs`: token id -> its score, the prompt's own token included.

    The first token has none. The rank is known of tokens among the candidates only.
    """
    return [None if each is None else _ranked(each, tokenizer) for each in scored]


def _ranked(scored: TokenLogprob, tokenizer: Tokenizer) -> dict[str, PromptLogprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(scored.top, start=1)}
    values = dict(scored.top)
    values[scored.token_id] = scored.logprob
    return {
        str(token_id): PromptLogprob(
            logprob=finite(value),
            rank=ranks.get(token_id),
            decoded_token=token_text(tokenizer.token_bytes(token_id)),
        )
        for token_id, value in values.items()
    }


def prompt_text(prompt: str | Sequence[int], tokenizer: Tokenizer) -> str:
    """The text that `echo` repeats: as sent, or decoded from ids."""
    if isinstance(prompt, str):
        return prompt
    return _decode([tokenizer.token_bytes(token_id) for token_id in prompt])


def _decode(raws: Sequence[bytes]) -> str:
    return b"".join(raws).decode("utf-8", "replace")


def token_text(raw: bytes) -> str:
    """A token as a string; half a character as `bytes:\\xf0\\x9f`, so that no two look alike."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(entries: Sequence[Entry], tokenizer: Tokenizer) -> list[ChatTokenLogprob]:
    """Entries in the shape of `choices[].logprobs.content`."""
    return [
        ChatTokenLogprob(
            token=token_text(tokenizer.token_bytes(entry.token_id)),
            logprob=LOGPROB_FLOOR if entry.logprob is None else entry.logprob,
            bytes=list(entry.raw),
            top_logprobs=[
                TopLogprob(token=token_text(raw), logprob=finite(logprob), bytes=list(raw))
                for raw, logprob in _top(entry, tokenizer)
            ],
        )
        for entry in entries
    ]


def completion_logprobs(entries: Sequence[Entry], tokenizer: Tokenizer) -> CompletionLogprobs:
    """Entries in the shape of `/v1/completions`; the token itself is always among the top."""
    return CompletionLogprobs(
        tokens=[token_text(tokenizer.token_bytes(entry.token_id)) for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[_top_by_text(entry, tokenizer) for entry in entries],
        text_offset=[entry.offset for entry in entries],
    )


def _top(entry: Entry, tokenizer: Tokenizer) -> list[tuple[bytes, float]]:
    return [(tokenizer.token_bytes(token_id), logprob) for token_id, logprob in entry.top]


def _top_by_text(entry: Entry, tokenizer: Tokenizer) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    best: dict[str, float] = {}
    own = (tokenizer.token_bytes(entry.token_id), entry.logprob)
    for raw, logprob in [*_top(entry, tokenizer), own]:
        best.setdefault(token_text(raw), finite(logprob))
    return best
