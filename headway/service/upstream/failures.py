"""What an upstream's refusal becomes for the client, and what it says of the upstream."""

import math
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

from headway.core.base.errors import (
    BodyTooLarge,
    HeadwayError,
    InvalidRequest,
    PromptTooLong,
    UpstreamBusy,
    UpstreamError,
    UpstreamMisconfigured,
    UpstreamTimeout,
)
from headway.core.base.units import Seconds

RETRY_AFTER = Seconds(1.0)
MAX_RETRY_S = 3600.0
MAX_MESSAGE = 600  # characters of an upstream's message that are shown
CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]]{0,63}")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
ADDRESS = re.compile(r"\b\w+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
SECRET = re.compile(r"\b(?:sk|hf|key|Bearer)[-_ ][\w*.-]{6,}", re.IGNORECASE)
TOO_LONG = (
    "maximum context length",  # OpenAI, vLLM, SGLang
    "longer than the model's context length",  # SGLang
    "exceeds the maximum allowed length",
    "exceeds the available context size",  # llama.cpp
)
FULL = frozenset({429, 503})
OURS = frozenset({401, 403, 404, 405, 407})
CLIENTS = frozenset({400, 413, 422})


class Refusal(NamedTuple):
    """What the client is told, and what the log is."""

    error: HeadwayError
    is_retried: bool  # another replica may answer
    is_failure: bool  # counts against the replica
    detail: str = ""  # for the log; may hold addresses, never text of a prompt
    cools_s: float = 0.0  # for which, as it says, the replica takes nothing


def refusal_of(
    status: int, headers: Mapping[str, str], body: bytes, hidden: Sequence[tuple[str, str]]
) -> Refusal:
    """A status that is not 200.

    hidden  texts of the upstream's own, its model's name for one, and what clients read instead
    """
    detail = _detail(body)
    if status in FULL:
        wait = Seconds(_retry_after(headers))
        busy = UpstreamBusy("the servers behind this model are full", wait)
        # 503 without a time is what a proxy says of a server that is not there. With one it may be
        # about this request alone, as a class's queue that is full; 429 is about whoever asks: us.
        is_told = not {"retry-after", "retry-after-ms"}.isdisjoint(headers)
        cools = float(wait) if status == 429 and is_told else 0.0
        return Refusal(busy, True, status == 503 and not is_told, f"{status}", cools)
    if status in CLIENTS:
        return Refusal(_of_the_client(status, detail, hidden), False, False, f"{status}")
    if status in OURS or 300 <= status < 400:
        error = UpstreamMisconfigured(
            "the server behind this model refuses this gateway; its operator finds why in the log",
            RETRY_AFTER,
        )
        return Refusal(error, True, True, f"{status}: {_clean(_text(detail, 'message'), hidden)}")
    if status in {408, 504}:
        late = UpstreamTimeout("the server behind this model took too long", RETRY_AFTER)
        return Refusal(late, True, True, f"{status}")
    failed = UpstreamError("the server behind this model failed", RETRY_AFTER)
    return Refusal(failed, True, True, f"{status}: {_clean(_text(detail, 'message'), hidden)}")


def error_in_stream(told: object, hidden: Sequence[tuple[str, str]]) -> HeadwayError:
    """An error event amid a stream: the client's fault only where the upstream says 400."""
    detail = told if isinstance(told, dict) else {"message": told}
    code = detail.get("code")
    if code in CLIENTS and isinstance(code, int):
        return _of_the_client(code, detail, hidden)
    return UpstreamError("the server behind this model failed while it answered", RETRY_AFTER)


def _of_the_client(
    status: int, detail: Mapping[str, Any], hidden: Sequence[tuple[str, str]]
) -> HeadwayError:
    message = _clean(_text(detail, "message"), hidden)
    shown = message or "the server behind this model cannot take this request"
    if status == 413:
        return BodyTooLarge(shown)
    param = _text(detail, "param")
    code = _text(detail, "code")
    kind = InvalidRequest
    if code == PromptTooLong.code or any(text in message for text in TOO_LONG):
        kind = PromptTooLong
    error = kind(shown, param=param if PARAM.fullmatch(param) else None)
    if kind is InvalidRequest and CODE.fullmatch(code):
        error.code = code
    return error


def _detail(body: bytes) -> dict[str, Any]:
    """The error object of OpenAI's form, of vLLM's older one, or of FastAPI's."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    inner = told.get("error", told)
    if isinstance(inner, str):
        return {"message": inner}
    if not isinstance(inner, dict):
        return {}
    if "message" not in inner and isinstance(inner.get("detail"), str):
        return {"message": inner["detail"]}
    return inner


def _text(detail: Mapping[str, Any], name: str) -> str:
    value = detail.get(name)
    return value if isinstance(value, str) else ""


def _clean(text: str, hidden: Sequence[tuple[str, str]]) -> str:
    """Without what tells of the upstream: addresses, keys, its model's name, control characters."""
    text = UNPRINTABLE.sub(" ", text)
    for own, shown in hidden:
        if own:
            text = text.replace(own, shown)
    text = SECRET.sub("***", ADDRESS.sub("***", text)).strip()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds; OpenAI's own header in milliseconds first, then HTTP's as number or as date."""
    told = headers.get("retry-after-ms")
    if told is not None and told.strip().isdecimal():
        return min(MAX_RETRY_S, int(told) / 1000.0)
    told = headers.get("retry-after", "").strip()
    try:
        seconds = float(told)
    except ValueError:
        seconds = _until(told, headers.get("date", ""))
    return min(MAX_RETRY_S, max(0.0, seconds)) if math.isfinite(seconds) else RETRY_AFTER


def _until(date: str, now: str) -> float:
    """Seconds between two dates of one server; a second where they cannot be read."""
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(now)).total_seconds()
    except (ValueError, TypeError):
        return float(RETRY_AFTER)
