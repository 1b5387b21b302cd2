"""Every error this service raises on purpose.

HeadwayError
├── ClientError                 the caller must change something            4xx
│   ├── InvalidRequest          400, names the field
│   │   ├── PromptTooLong       400, code context_length_exceeded
│   │   ├── Unsupported         400, code unsupported_parameter
│   │   └── UnsupportedModality 400, code unsupported_modality
│   ├── Unauthorized            401
│   ├── NotFound                404, no such path
│   │   └── ModelNotFound       404, code model_not_found
│   ├── MethodNotAllowed        405
│   ├── SlowBody                408
│   ├── Conflict                409, it is there already, or not in the state for that
│   ├── ClientSilent            408, it had promised heartbeats
│   ├── BodyTooLarge            413
│   ├── UnsupportedMedia        415
│   └── RateLimited             429, carries retry_after_s, or None
│       └── QuotaExceeded       429, code insufficient_quota
├── CapacityError               try later or elsewhere        503, carries retry_after_s
│   ├── QueueFull
│   ├── DeadlineUnmeetable
│   ├── UpstreamBusy            another server that we send to is full
│   └── ShuttingDown
├── ReplicaError                one replica failed, not all       503, carries retry_after_s
│   ├── ReplicaLost
│   ├── ReplicaNotReady
│   └── UpstreamError           502, another server that we send to failed
│       ├── UpstreamMisconfigured  it refuses us, not the client; the log says how
│       ├── UpstreamBroken         its answer stopped before its end
│       └── UpstreamTimeout     504
├── StoreUnavailable            the database does not answer            503, carries retry_after_s
├── InternalError               our own bug, said without details           500
├── CorruptBlock                KV in memory is not what was saved: the engine ends
├── BadFrame                    bytes between our processes that are no message: dropped
└── StartError                  the process cannot start                    exit code 2
    ├── InvalidSetting          names the setting, its value and what to do
    ├── ModelFileError          names the file and the tensor or key
    │   └── ExecutorUnsuitable  another executor can compute the model
    └── NotEnoughMemory         says what was asked, what there is, what would fit
"""

from headway.core.base.units import Seconds


class HeadwayError(Exception):
    """Root of the tree; `message` is written for the person who reads it at 3 a.m."""

    http_status = 500
    error_type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ClientError(HeadwayError):
    """The caller must change the request before it can succeed."""

    http_status = 400
    error_type = "invalid_request_error"


class InvalidRequest(ClientError):
    """A field is missing, of the wrong type or out of range; `param` names it."""


class PromptTooLong(InvalidRequest):
    """Prompt and answer do not fit the context; the message says both lengths."""

    code = "context_length_exceeded"


class Unsupported(InvalidRequest):
    """A known field, or a value of one, that this server cannot honour."""

    code = "unsupported_parameter"


class UnsupportedModality(InvalidRequest):
    """A message holds an image, sound or file, which the model cannot take."""

    code = "unsupported_modality"


class Unauthorized(ClientError):
    """No API key, or one that is not known."""

    http_status = 401
    error_type = "authentication_error"
    code = "invalid_api_key"


class NotFound(ClientError):
    """There is nothing at this path."""

    http_status = 404
    error_type = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No model of that name is served here; the message lists those that are."""

    code = "model_not_found"


class MethodNotAllowed(ClientError):
    """The path exists, but not with this method."""

    http_status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str = "") -> None:
        """`allowed` are the methods that there are, as the header Allow has them."""
        super().__init__(message)
        self.allowed = allowed


class SlowBody(ClientError):
    """The body did not arrive within the limit."""

    http_status = 408
    code = "request_timeout"


class Conflict(ClientError):
    """What should be made is there already, or is not in a state in which that can be done."""

    http_status = 409
    code = "conflict"


class ClientSilent(ClientError):
    """The client had promised to beat and did not: its request was ended."""

    http_status = 408
    code = "client_silent"


class BodyTooLarge(ClientError):
    """The body is over the limit in bytes; nothing of it was parsed."""

    http_status = 413
    code = "request_too_large"


class UnsupportedMedia(ClientError):
    """The body's content type or encoding is not one that is read here."""

    http_status = 415
    code = "unsupported_media_type"


class RateLimited(ClientError):
    """A limit of the caller's own; waiting `retry_after_s` helps, or nothing does (None)."""

    http_status = 429
    error_type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: Seconds | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QuotaExceeded(RateLimited):
    """The caller's budget of the month is used up, or would be by this request."""

    error_type = "insufficient_quota"
    code = "insufficient_quota"


class CapacityError(HeadwayError):
    """We are full; the request is fine. Try again after `retry_after_s`."""

    http_status = 503
    error_type = "overloaded_error"
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: Seconds) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(CapacityError):
    """The waiting queue is at its limit, in requests or in tokens."""

    code = "queue_full"


class DeadlineUnmeetable(CapacityError):
    """The first token would come later than the request's class is promised."""

    code = "deadline_unmeetable"


class UpstreamBusy(CapacityError):
    """The server behind this model is full, or its own limits are reached."""

    code = "upstream_busy"


class ShuttingDown(CapacityError):
    """The server is draining; another one, or this one restarted, will answer."""

    code = "shutting_down"


class ReplicaError(HeadwayError):
    """One replica failed; the request may succeed elsewhere or later."""

    http_status = 503
    error_type = "server_error"
    code = "replica_error"

    def __init__(self, message: str, retry_after_s: Seconds) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ReplicaLost(ReplicaError):
    """The engine process died while it worked on the request."""

    code = "engine_lost"


class ReplicaNotReady(ReplicaError):
    """The engine is still loading, restarting or makes no progress."""

    code = "engine_not_ready"


class UpstreamError(ReplicaError):
    """A server that we send requests to failed; another of the same model may not."""

    http_status = 502
    code = "upstream_error"


class UpstreamMisconfigured(UpstreamError):
    """It refuses us, not the client: wrong key, model name or address. The log says which."""

    code = "upstream_misconfigured"


class UpstreamBroken(UpstreamError):
    """Its answer stopped before its end, or is none that can be read."""

    code = "upstream_broken"


class UpstreamTimeout(UpstreamError):
    """It stayed silent for longer than its settings allow."""

    http_status = 504
    code = "upstream_timeout"


class StoreUnavailable(HeadwayError):
    """The database does not answer now; waiting `retry_after_s` may help."""

    http_status = 503
    code = "store_unavailable"

    def __init__(self, message: str, retry_after_s: Seconds) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InternalError(HeadwayError):
    """A bug of ours; the log has the details under the same request id."""

    code = "internal_error"


class CorruptBlock(HeadwayError):
    """A KV block of the host tier changed between being saved and loaded; names the block."""


class BadFrame(HeadwayError):
    """Bytes on a wire between our own processes that are no message; the message quotes none."""

    code = "bad_frame"


class StartError(HeadwayError):
    """The process cannot start; one line says why, exit code 2."""

    code = "start_error"


class InvalidSetting(StartError):
    """A setting's value is impossible; the message starts with the setting's name."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}", param=setting)


class ModelFileError(StartError):
    """A model file is missing, cut short, contradictory or not supported."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}", param="model")


class ExecutorUnsuitable(ModelFileError):
    """This executor cannot compute the model; the message names one that can."""


class NotEnoughMemory(StartError):
    """Weights or the KV pool do not fit into the memory there is."""
