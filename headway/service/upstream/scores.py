"""Log-probabilities of another server's answer: asked for, read, and kept from who did not ask."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headway.core.base.units import Seconds
from headway.core.messages.path import LOGPROB_FLOOR, FinishReason, TokenLogprob, Tokens
from headway.core.route.cascade import Confidence
from headway.service.openai.forwarded import ForwardedRequest

NO_ID = 0  # of a token that is known by its text only


class Scoring:
    """What is made of the log-probabilities of one answer's tokens."""

    def __init__(self, confidence: Confidence, *, is_shown: bool) -> None:
        """is_shown  whether the client asked for them too"""
        self._confidence = confidence
        self._is_shown = is_shown

    def take(self, choices: Iterable[dict[str, Any]], counts: Iterable[int]) -> None:
        """Some choices of a chunk or of an answer, and how many tokens each of them has."""
        for choice, count in zip(choices, counts, strict=True):
            found = logprobs_of(choice)
            is_cut = choice.get("finish_reason") == "length"
            self._confidence.saw(
                Tokens(
                    request_id="",
                    choice=0,
                    token_ids=(NO_ID,) * max(count, len(found)),
                    text="",
                    at=Seconds(0.0),
                    logprobs=tuple(TokenLogprob(NO_ID, each) for each in found),
                    finish_reason=FinishReason.LENGTH if is_cut else None,
                )
            )
            if not self._is_shown and "logprobs" in choice:
                choice["logprobs"] = None


def asks_for_scores(request: ForwardedRequest) -> bool:
    """Whether the client itself wants log-probabilities."""
    wanted = request.fields.get("logprobs")
    return wanted is not None and wanted is not False


def scored(request: ForwardedRequest) -> ForwardedRequest:
    """The same with the log-probabilities of its answer's tokens asked for.

    One candidate a token and not none: llama.cpp tells nothing of a token without any.
    """
    fields = dict(request.fields)
    if "messages" in fields:
        fields["logprobs"] = True
        fields["top_logprobs"] = _at_least_one(fields.get("top_logprobs"))
    else:
        fields["logprobs"] = _at_least_one(fields.get("logprobs"))
    return msgspec.structs.replace(request, fields=fields)


def logprobs_of(choice: Mapping[str, Any]) -> Sequence[float]:
    """Of the tokens of a choice, or of a chunk of one, in OpenAI's newer form or its older one."""
    told = choice.get("logprobs")
    if not isinstance(told, dict):
        return ()
    entries = told.get("content")
    values = told.get("token_logprobs")
    if isinstance(entries, list):
        values = [each.get("logprob") for each in entries if isinstance(each, dict)]
    return [_finite(each) for each in values or () if _is_number(each)]


def _at_least_one(asked: object) -> object:
    """What is wrong goes on as it came: the server says so."""
    return 1 if asked is None or asked is False or asked == 0 else asked


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: float) -> float:
    return max(LOGPROB_FLOOR, value) if math.isfinite(value) else LOGPROB_FLOOR
