"""A request as an upstream gets it: the client's fields, and nothing of it that says who asks."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from headway.core.base.errors import InvalidRequest, UnsupportedModality
from headway.core.tenancy.tenant import SloClass
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.upstream.settings import Endpoint, Kind, UpstreamSettings

AGENT = "headway"
MAX_INT = 2**31 - 1  # tokens that nobody has bounded
# Of the client's headers, these go on, if they look as they should; every other one stays here.
PASSED: Mapping[str, re.Pattern[str]] = {
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    "tracestate": re.compile(r"[\x20-\x7e]{1,512}"),
}
SALTED = frozenset({Kind.VLLM, Kind.SGLANG, Kind.HEADWAY})  # know `cache_salt`

_encode = msgspec.json.Encoder().encode


class Target(NamedTuple):
    """Which of the upstream's endpoints answers ours."""

    path: str  # behind Endpoint.api
    is_native: bool = False


TARGETS: Mapping[str, Target] = {
    "chat_completions": Target("/chat/completions"),
    "completions": Target("/completions"),
    "chat": Target("/chat/completions", is_native=True),
}


def check_modalities(request: ForwardedRequest, settings: UpstreamSettings) -> None:
    """Raise UnsupportedModality for what this pool does not take, or must not fetch."""
    for kind in sorted(request.modalities):
        if kind not in settings.modalities:
            raise UnsupportedModality(
                f"This model takes no {kind} content; send text only, and nothing is fetched "
                "from a URL.",
                param="messages",
            )
    if request.names_urls and not settings.remote_media:
        raise UnsupportedModality(
            "Content must be in the request itself, as a data: URL; nothing is fetched from a URL.",
            param="messages",
        )


def most_tokens(request: ForwardedRequest, settings: UpstreamSettings, bound: int | None) -> int:
    """Most tokens that a choice may get, as far as that is known.

    bound  of the route
    """
    known = (request.max_tokens, bound, settings.context_length)
    return min([each for each in known if each is not None], default=MAX_INT)


def outgoing_body(
    request: ForwardedRequest,
    settings: UpstreamSettings,
    request_id: str,
    bound: int | None = None,
) -> bytes:
    """The body, with the upstream's name of the model and usage asked for.

    bound  most tokens of an answer, where the route says so
    """
    fields: dict[str, Any] = dict(request.fields)
    fields["model"] = settings.upstream_model
    if request.stream and settings.stream_usage:
        options = fields.get("stream_options") or {}
        fields["stream_options"] = {**options, "include_usage": True}
    elif "stream_options" in fields and not settings.stream_usage:
        del fields["stream_options"]
    if bound is not None:
        asked = request.max_tokens
        least = bound if asked is None else min(asked, bound)
        others = {"max_tokens", "max_completion_tokens"} & fields.keys()
        fields |= dict.fromkeys((request.max_tokens_field, *others), least)
    _salt(fields, request, settings)
    if settings.kind is Kind.SGLANG:
        fields["rid"] = request_id
    if settings.priority:
        fields["priority"] = _priority(settings.kind, request.asker.slo_class)
    return _encode(fields)


def outgoing_head(
    endpoint: Endpoint,
    path: str,
    settings: UpstreamSettings,
    key: str | None,
) -> str:
    """Request line and header of a POST, see `HttpClient.send`; one request's own may follow."""
    lines = [
        f"POST {endpoint.api}{path} HTTP/1.1",
        "content-type: application/json",
        "accept: text/event-stream, application/json",
        "accept-encoding: identity",
        f"user-agent: {AGENT}",
    ]
    return "\r\n".join(lines) + "\r\n" + header_lines(own_headers(settings, key))


def header_lines(headers: Mapping[str, str]) -> str:
    """Of a request's header."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def probe_head(path: str, settings: UpstreamSettings, key: str | None) -> str:
    """Request line and header of a GET."""
    lines = [f"GET {path} HTTP/1.1", "accept: */*", "accept-encoding: identity"]
    lines.append(f"user-agent: {AGENT}")
    return "\r\n".join(lines) + "\r\n" + header_lines(own_headers(settings, key))


def own_headers(settings: UpstreamSettings, key: str | None) -> dict[str, str]:
    """The gateway's own credentials, and what the operator adds."""
    headers = {name.lower(): value for name, value in settings.headers.items()}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers


def passed_headers(header: Callable[[str], str | None]) -> dict[str, str]:
    """Those of a client's headers that go on; `header` finds one by its name in lower case."""
    found = {}
    for name, pattern in PASSED.items():
        value = header(name)
        if value is not None and pattern.fullmatch(value):
            found[name] = value
    return found


def _salt(fields: dict[str, Any], request: ForwardedRequest, settings: UpstreamSettings) -> None:
    """Tenants never share cached blocks, whatever salts they send."""
    salt = fields.pop("cache_salt", None)
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest("'cache_salt' must be a string.", param="cache_salt")
    if settings.kind not in SALTED:
        return
    tenant = request.asker.tenant.name
    if tenant:
        fields["cache_salt"] = sha256(f"{tenant}\0{salt or ''}".encode()).hexdigest()
    elif salt:
        fields["cache_salt"] = salt


def _priority(kind: Kind, slo_class: SloClass) -> int:
    """The class as the server counts: vLLM takes the smallest first, SGLang the largest."""
    return slo_class if kind is Kind.VLLM else max(SloClass) - slo_class


def salt_of(request: ForwardedRequest) -> bytes:
    """What keeps texts of different tenants and salts apart in an index of prefixes."""
    salt = request.fields.get("cache_salt")
    shown = salt if isinstance(salt, str) else ""
    return f"{request.asker.tenant.name}\0{shown}".encode("utf-8", "replace")
