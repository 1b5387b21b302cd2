"""When a choice ends: end of sequence, stop token, stop string, length."""

from typing import NamedTuple

from headway.core.messages.path import FinishReason, Sampling
from headway.core.text.streamer import TokenStreamer


class Gain(NamedTuple):
    """What a choice gained by one token."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def end_ids(sampling: Sampling, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Token ids that end the choice; also those that min_tokens forbids for a while."""
    return sampling.stop_token_ids + (() if sampling.ignore_eos else eos_ids)


def take_token(
    token_id: int, position: int, sampling: Sampling, ends: tuple[int, ...], streamer: TokenStreamer
) -> Gain:
    """Turn the token drawn for output `position` into text, and decide whether it is the last.

    An end token gives no text, unless it is a stop token and the request wants stops kept.
    When several ends meet in one token, a stop wins over the length.
    """
    may_stop = position + 1 >= sampling.min_tokens
    if token_id in ends and may_stop:
        is_stop_token = token_id in sampling.stop_token_ids
        text = streamer.flush().text
        if is_stop_token and sampling.include_stop:
            text += streamer.push(token_id, may_stop=False).text + streamer.flush().text
        return Gain(text, FinishReason.STOP, token_id if is_stop_token else None)
    streamed = streamer.push(token_id, may_stop=may_stop)
    if streamed.stop is not None:
        return Gain(streamed.text, FinishReason.STOP, streamed.stop)
    if position + 1 < sampling.max_tokens:
        return Gain(streamed.text)
    last = streamer.flush()
    if last.stop is not None:
        return Gain(streamed.text + last.text, FinishReason.STOP, last.stop)
    return Gain(streamed.text + last.text, FinishReason.LENGTH)
