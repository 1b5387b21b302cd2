"""Errors to HTTP answers and stream events: the one place where they are translated."""

import math

import msgspec

from headway.core.base.errors import (
    CapacityError,
    HeadwayError,
    InternalError,
    RateLimited,
    ReplicaError,
    StartError,
    StoreUnavailable,
)
from headway.core.base.units import Seconds
from headway.core.messages.path import Finished, FinishReason
from headway.service.openai import sse
from headway.service.openai.answer_schema import ErrorBody, ErrorDetail

WAITING_HELPS = (CapacityError, ReplicaError, RateLimited, StoreUnavailable)
DEFAULT_RETRY_S = Seconds(1.0)
SHORT_WAIT_S = 60.0  # more, and OpenAI's clients would ignore it and try again at once
HIDDEN = "The server made an error and this request failed; its log says why."


def public(error: BaseException) -> HeadwayError:
    """The error itself if clients may see it, else an InternalError without details."""
    if isinstance(error, HeadwayError) and not isinstance(error, StartError):
        return error
    return InternalError(HIDDEN)


def body_of(error: BaseException) -> bytes:
    """OpenAI's error object as JSON."""
    shown = public(error)
    detail = ErrorDetail(
        message=_clean(shown.message),
        type=shown.error_type,
        param=None if shown.param is None else _clean(shown.param),
        code=shown.code,
    )
    return msgspec.json.encode(ErrorBody(error=detail))


def to_response(error: BaseException) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Status, headers and body; `Retry-After` in whole seconds where waiting helps.

    A limit of the caller's own is told to the millisecond too, and clients that try again by
    themselves are told not to where that is of no use within a minute.
    """
    shown = public(error)
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    if isinstance(shown, WAITING_HELPS) and shown.retry_after_s is not None:
        headers += (("retry-after", str(_whole_seconds(shown.retry_after_s))),)
    if isinstance(shown, RateLimited):
        wait = shown.retry_after_s
        if wait is None or not wait <= SHORT_WAIT_S:  # also for what is no number
            headers += (("x-should-retry", "false"),)
        else:
            headers += (("retry-after-ms", str(max(1, math.ceil(wait * 1000)))),)
    return shown.http_status, headers, body_of(shown)


def to_event(error: BaseException) -> bytes:
    """The last event of a stream that failed; no [DONE] follows it."""
    return sse.event(body_of(error))


def failure_of(finished: Finished) -> HeadwayError | None:
    """The error that a request ended with, or None when it ended well.

    `error_code` chooses the class, so that a failure in the engine has the same status as
    one that was noticed here.
    """
    if finished.reason is FinishReason.CANCELLED:
        return InternalError("The request was cancelled before its answer was complete.")
    if finished.reason is not FinishReason.ERROR:
        return None
    kind = _BY_CODE.get(finished.error_code or "", InternalError)
    message = finished.error or HIDDEN
    if issubclass(kind, WAITING_HELPS):
        wait = finished.retry_after_s
        return kind(message, DEFAULT_RETRY_S if wait is None else Seconds(wait))
    return kind(message)


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds)) if math.isfinite(seconds) else 1


def _clean(text: str) -> str:
    """Valid UTF-8 whatever a message was made of."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _tree(root: type[HeadwayError]) -> list[type[HeadwayError]]:
    return [root] + [kind for child in root.__subclasses__() for kind in _tree(child)]


# The first class of a code wins, so that a subclass without a code of its own does not.
_BY_CODE: dict[str, type[HeadwayError]] = {
    kind.code: kind
    for kind in reversed(_tree(HeadwayError))
    if kind.code is not None and not issubclass(kind, StartError)
}
