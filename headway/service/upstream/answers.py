"""An upstream's answer as ours: other id and model, usage only to who asked for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec

from headway.core.base.errors import UpstreamBroken
from headway.core.base.units import Seconds
from headway.core.messages.path import FinishReason, Usage
from headway.service.openai import sse
from headway.service.openai.answer_schema import NativeEvent
from headway.service.upstream.failures import error_in_stream
from headway.service.upstream.likeness import Gain, Likeness, likeness_of
from headway.service.upstream.scores import Scoring

DONE = b"[DONE]"
RETRY_AFTER = Seconds(1.0)
MOST_LESSONS = 8  # of one answer, so that chunks that are never alike are not compared for ever
# Of a delta: what is text that a model made.
TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
CUT = "the server behind this model stopped before its answer was complete"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Shown(NamedTuple):
    """What is the gateway's own in every answer, and what the client asked to see."""

    id: str
    model: str
    include_usage: bool
    num_choices: int  # that have to end before the answer is complete
    is_native: bool = False  # events of /v1/chat
    hidden: Sequence[tuple[str, str]] = ()  # see failures.refusal_of
    scoring: Scoring | None = None  # for who judges the answer by its log-probabilities


class Ended(NamedTuple):
    """How an answer ended."""

    reason: FinishReason
    usage: Usage


class StreamedAnswer:
    """One streamed answer: data of events in, events for the client and for the meter out."""

    def __init__(self, shown: Shown, prompt_tokens: int) -> None:
        self._shown = shown
        self._prompt_tokens = prompt_tokens  # an estimate, for an upstream that tells none
        self._num_pieces = 0
        self._num_events = 0
        self._open = set(range(shown.num_choices))
        self._usage: Usage | None = None
        self._reason = FinishReason.STOP
        self._likeness: Likeness | None = None
        is_plain = not shown.is_native and shown.scoring is None
        self._lessons = MOST_LESSONS if is_plain else 0
        self._is_first = True
        self.is_done = False  # [DONE] has come

    @property
    def num_tokens(self) -> int:
        """Of all events so far."""
        return self._num_pieces

    @property
    def is_complete(self) -> bool:
        """Whether every choice has told why it ended."""
        return not self._open

    def take(self, data: bytes, gains: list[Gain]) -> bytes:
        """What the client gets for one event, possibly nothing; what it brought goes to `gains`.

        Raises UpstreamBroken for what is no chunk, and what an error event says.
        """
        likeness = self._likeness
        if likeness is not None and (event := likeness.rewritten(data)):
            self._num_pieces += 1
            gains.append(likeness.gain)
            return event
        if data == DONE:
            self.is_done = True
            return b""
        return self._changed(data, gains)

    def _changed(self, data: bytes, gains: list[Gain]) -> bytes:
        """The same for an event that has to be decoded."""
        chunk = _object(data)
        if "choices" not in chunk and "error" in chunk:
            raise error_in_stream(chunk["error"], self._shown.hidden)
        self._gained(chunk, gains)
        if self._shown.scoring is not None:
            parts = _list(chunk.get("choices"))
            self._shown.scoring.take(parts, map(_num_tokens, parts))
        told = chunk.get("usage")
        if told is not None:
            self._usage = usage_of(told) or self._usage
        choices = chunk.get("choices")
        if not choices and told is not None:
            return b""  # told again by `last`
        if self._shown.is_native:
            return self._native(choices or [])
        is_first, self._is_first = self._is_first, False
        if self._lessons and not is_first:  # that one is waited for, and its role makes it unlike
            self._likeness = likeness_of(data, chunk, self._written) or self._likeness
            self._lessons -= 1
        return self._written(chunk)

    def _written(self, chunk: Mapping[str, Any]) -> bytes:
        """A chunk as the client gets it."""
        ours = {**chunk, "id": self._shown.id, "model": self._shown.model}
        if not self._shown.include_usage:
            ours.pop("usage", None)
        return sse.event(_encode(ours))

    def last(self, created: int) -> tuple[bytes, Ended]:
        """The end for the client, and for the meter; raises UpstreamBroken if it is none."""
        if not self.is_complete:
            raise UpstreamBroken(CUT, RETRY_AFTER)
        ended = Ended(self._reason, self._usage or self._estimate())
        out = sse.DONE
        if self._shown.include_usage and not self._shown.is_native:
            out = sse.event(_encode(self._usage_chunk(created, ended.usage))) + out
        return out, ended

    def _gained(self, chunk: Mapping[str, Any], gains: list[Gain]) -> None:
        for choice in _list(chunk.get("choices")):
            index = choice.get("index", 0)
            count = _num_tokens(choice)
            if count:
                self._num_pieces += count
                gains.append(Gain(index if isinstance(index, int) else 0, count))
            reason = choice.get("finish_reason")
            if reason is not None:
                self._open.discard(index)
                self._reason = reason_of(reason)

    def _native(self, choices: Sequence[Any]) -> bytes:
        """Events of /v1/chat: text, or the end, or both at once."""
        out = b""
        for choice in _list(choices):
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else None
            finish = choice.get("finish_reason")
            if not text and finish is None:
                continue
            event = NativeEvent(token=text or "", index=self._num_events, finish_reason=finish)
            self._num_events += 1
            out += sse.event(_encode(event))
        return out

    def _usage_chunk(self, created: int, usage: Usage) -> dict[str, object]:
        return {
            "id": self._shown.id,
            "object": "chat.completion.chunk"
            if self._shown.id.startswith("chatcmpl")
            else "text_completion",
            "created": created,
            "model": self._shown.model,
            "choices": [],
            "usage": usage_body(usage),
        }

    def _estimate(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._num_pieces,
            is_estimated=True,
        )


def whole_answer(
    body: bytes, shown: Shown, estimate: Callable[[int], Usage]
) -> tuple[bytes, Ended]:
    """An answer that is not streamed, as the client gets it; raises UpstreamBroken.

    estimate  tokens of an answer that tells no usage, from its bytes
    """
    answer = _object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UpstreamBroken("the server behind this model sent what is no answer", RETRY_AFTER)
    usage = usage_of(answer.get("usage"))
    if usage is None:
        texts = sum(len(_encode(choice)) for choice in choices)
        usage = estimate(texts)
        answer["usage"] = usage_body(usage)
    answer["id"], answer["model"] = shown.id, shown.model
    if shown.scoring is not None:
        parts = _list(choices)
        shown.scoring.take(parts, (int(usage.completion_tokens > 0) for _ in parts))
    reasons = [reason_of(each.get("finish_reason")) for each in _list(choices)]
    return _encode(answer), Ended(reasons[-1] if reasons else FinishReason.STOP, usage)


def usage_of(told: object) -> Usage | None:
    """Tokens as an upstream tells them; None where it does not."""
    if not isinstance(told, dict):
        return None
    prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens", 0)
    if not _is_count(prompt) or not _is_count(completion):
        return None
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(cached, prompt) if _is_count(cached) else 0,
    )


def usage_body(usage: Usage) -> dict[str, object]:
    """Usage as clients read it; an estimate says that it is one."""
    body: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.is_estimated:
        body["is_estimated"] = True
    return body


def reason_of(told: object) -> FinishReason:
    """Ours for theirs: tool calls and filters are ends like any other."""
    return FinishReason.LENGTH if told == "length" else FinishReason.STOP


def _num_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens that a chunk brings to a choice: those that it lists, else one if it has text."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if isinstance(entries, list) and entries:
        return len(entries)
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return 1 if any(delta.get(name) for name in TEXTS) else 0
    return 1 if choice.get("text") else 0


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UpstreamBroken("the server behind this model sent what is no JSON", RETRY_AFTER)
    return found


def _list(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
