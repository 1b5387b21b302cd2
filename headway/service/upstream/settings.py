"""What an operator says of one model that other servers answer for. Nothing of it is a client's."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.route.breaker import BreakerSettings
from headway.core.route.retry import RetrySettings
from headway.core.route.table import PoolFacts

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
OWN_HEADERS = frozenset(
    {
        *("host", "content-length", "content-type", "transfer-encoding", "connection"),
        *("accept", "accept-encoding", "authorization", "upgrade", "te", "trailer", "expect"),
    }
)


class Kind(StrEnum):
    """What program answers; it decides which of its own calls are used."""

    OPENAI = "openai"  # anything that speaks the API
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    HEADWAY = "headway"


class Modality(StrEnum):
    """What the model takes beside text."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


SCORES = frozenset({Kind.VLLM, Kind.SGLANG, Kind.LLAMACPP, Kind.HEADWAY})  # give logprobs
PRIORITY = frozenset({Kind.VLLM, Kind.SGLANG})  # can schedule by a request's `priority`
HEALTH_PATHS = {
    Kind.VLLM: "/health",
    Kind.SGLANG: "/health",
    Kind.LLAMACPP: "/health",
    Kind.HEADWAY: "/ready",
}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long this gateway waits, in seconds."""

    connect: float = 5.0
    first_token: float = 120.0  # of a stream, from sending it to the first event
    between_chunks: float = 60.0  # of a stream
    total: float = 3600.0  # from the request's arrival to its end, retries included
    probe: float = 2.0


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an https upstream is trusted, and how it trusts us."""

    verify: bool = True
    ca_file: str | None = None  # None: the authorities that this system trusts
    cert_file: str | None = None
    key_file: str | None = None


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model behind other servers: its names, where they are, and how they are treated."""

    name: str | tuple[str, ...] = ()  # for clients; the first is shown
    url: str | tuple[str, ...] = ()  # one a replica; without a path, /v1 is meant
    kind: Kind = Kind.OPENAI
    model: str | None = None  # its name there; None: the first of `name`
    api_key_env: str | None = None  # environment variable with the key
    api_key_file: str | None = None
    timeouts: Timeouts = Timeouts()
    tls: Tls = Tls()
    headers: dict[str, str] = {}  # added to every request
    health_path: str | None = None  # from the root; None: by kind, else the list of models
    probe_interval: float = 2.0  # seconds
    max_concurrent: int = 256  # requests at one replica
    max_waiting: int = 256  # requests that wait here for a replica with room
    ageing: float = 30.0  # seconds of waiting here that lift a request by one class
    priority: bool = False  # tell the server each request's class, where it schedules by that
    max_skew: int = 2  # most requests that a warm replica may have more than the idlest
    retries: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    modalities: tuple[Modality, ...] = ()  # beside text
    remote_media: bool = False  # let the upstream fetch URLs that clients name
    context_length: int | None = None  # tokens; shown in /v1/models
    logprobs: bool | None = None  # whether it gives log-probabilities; None: by kind
    stream_usage: bool = True  # ask for usage in every stream; off for servers that refuse it
    max_answer_bytes: int = 64 * 1024 * 1024  # of an answer that is not streamed
    launch: tuple[str, ...] = ()  # command of a server that this gateway starts, one a URL
    launch_timeout: float = 900.0  # seconds from its start to its first health
    stop_timeout: float = 30.0  # seconds from SIGTERM to SIGKILL

    @property
    def names(self) -> tuple[str, ...]:
        """All names for clients."""
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def urls(self) -> tuple[str, ...]:
        """Of all replicas."""
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def upstream_model(self) -> str:
        """The model's name in requests that are sent."""
        return self.model if self.model is not None else self.names[0]

    @property
    def has_logprobs(self) -> bool:
        """Whether its answers can be scored."""
        return self.kind in SCORES if self.logprobs is None else self.logprobs

    @property
    def probe_path(self) -> str | None:
        """What a health probe asks for, from the root; None: the list of models."""
        return self.health_path or HEALTH_PATHS.get(self.kind)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's address, taken apart."""

    label: str  # host:port, for people
    host: str
    port: int
    is_tls: bool
    authority: str  # for the Host header
    api: str  # path before /chat/completions, without a slash at its end
    root: str  # path before /health and /metrics

    @classmethod
    def of(cls, url: str) -> "Endpoint":
        """Of a URL that `check` has passed."""
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        api = parts.path.rstrip("/") or "/v1"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            label=f"{host}:{port}",
            host=parts.hostname,
            port=port,
            is_tls=is_tls,
            authority=host if parts.port is None else f"{host}:{port}",
            api=api,
            root=api.removesuffix("/v1"),
        )


def check(settings: UpstreamSettings, where: str = "upstream") -> None:
    """Raise InvalidSetting, which names the field, for what cannot work. Reads no file."""
    if not settings.names or not all(settings.names):
        raise InvalidSetting(f"{where}.name", "is missing; give the model a name for clients")
    if not settings.urls:
        raise InvalidSetting(f"{where}.url", "is missing; give the server's http or https URL")
    if settings.model is not None and not settings.model.strip():
        raise InvalidSetting(f"{where}.model", "must not be empty; leave it out for the same name")
    _check_urls(settings.urls, f"{where}.url")
    _check_headers(settings.headers, f"{where}.headers")
    if settings.api_key_env is not None and settings.api_key_file is not None:
        raise InvalidSetting(f"{where}.api_key_file", "stands beside api_key_env; give one")
    if settings.health_path is not None and not settings.health_path.startswith("/"):
        raise InvalidSetting(
            f"{where}.health_path", f"must begin with /, got {settings.health_path!r}"
        )
    _check_numbers(settings, where)
    if settings.priority and settings.kind not in PRIORITY:
        raise InvalidSetting(
            f"{where}.priority",
            f"needs kind {' or '.join(sorted(PRIORITY))}; {settings.kind} knows no priorities",
        )
    if settings.tls.key_file is not None and settings.tls.cert_file is None:
        raise InvalidSetting(f"{where}.tls.key_file", "needs cert_file beside it")
    needs_port = len(settings.urls) > 1 and not any("{port}" in word for word in settings.launch)
    if settings.launch and needs_port:
        raise InvalidSetting(
            f"{where}.launch", "must name {port} where there are several URLs, one process each"
        )


def read_key(settings: UpstreamSettings, environment: Iterable[tuple[str, str]]) -> str | None:
    """The key that the upstream wants; raises InvalidSetting, which never repeats it."""
    if settings.api_key_env is not None:
        key = dict(environment).get(settings.api_key_env, "")
        where, what = "api_key_env", f"{settings.api_key_env} is not set"
    elif settings.api_key_file is not None:
        where, what = "api_key_file", f"{settings.api_key_file} is empty"
        try:
            key = Path(settings.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidSetting(
                f"upstream.{where}", f"{settings.api_key_file} cannot be read: {reason}"
            ) from None
    else:
        return None
    if not key:
        raise InvalidSetting(f"upstream.{where}", what)
    if not HEADER_VALUE.fullmatch(key):
        raise InvalidSetting(f"upstream.{where}", "holds a key with characters no header can carry")
    return key


def _check_urls(urls: Sequence[str], where: str) -> None:
    for url in urls:
        shown = re.sub(r"//[^/@]*@", "//***@", url)
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            raise InvalidSetting(where, f"{shown!r} is no URL") from None
        problem = _problem_of(parts, url)
        if problem:
            raise InvalidSetting(where, f"{shown!r} {problem}")
    labels = [Endpoint.of(url).label for url in urls]
    if len(set(labels)) < len(labels):
        raise InvalidSetting(where, "names one server twice")


def _problem_of(parts: SplitResult, url: str) -> str:
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "must be an http or https URL"
    if parts.username is not None or parts.password is not None:
        return "must not hold a password; use api_key_env or api_key_file"
    if parts.query or parts.fragment or not re.fullmatch(r"[\x21-\x7e]+", url):
        return "must be scheme, host, port and path only"
    return ""


def _check_headers(headers: dict[str, str], where: str) -> None:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise InvalidSetting(where, f"{name[:64]!r} is no header name")
        if name.lower() in OWN_HEADERS:
            raise InvalidSetting(f"{where}.{name}", "is set by this gateway itself")
        if not HEADER_VALUE.fullmatch(value):
            raise InvalidSetting(f"{where}.{name}", "has a value that no header can carry")


def _check_numbers(settings: UpstreamSettings, where: str) -> None:
    positive = _values("timeouts", settings.timeouts) | _values("breaker", settings.breaker)
    for name in ("probe_interval", "launch_timeout", "ageing", "max_concurrent"):
        positive[name] = getattr(settings, name)
    positive["max_answer_bytes"] = settings.max_answer_bytes
    positive["retries.in_a_row"] = settings.retries.in_a_row
    if settings.context_length is not None:
        positive["context_length"] = settings.context_length
    for name, value in positive.items():
        if not 0 < value <= 1e12:
            raise InvalidSetting(f"{where}.{name}", f"must be above 0, got {value:g}")
    others = {name: getattr(settings, name) for name in ("max_waiting", "max_skew", "stop_timeout")}
    others |= {"retries.share": settings.retries.share, "retries.least": settings.retries.least}
    for name, value in others.items():
        if not 0 <= value <= 1e12:
            raise InvalidSetting(f"{where}.{name}", f"must be 0 or more, got {value:g}")


def _values(name: str, part: Timeouts | BreakerSettings) -> dict[str, float]:
    return {f"{name}.{field}": getattr(part, field) for field in part.__struct_fields__}


def facts_of(settings: UpstreamSettings) -> PoolFacts:
    """What routes have to know of it."""
    return PoolFacts(
        names=settings.names,
        modalities=tuple(each.value for each in settings.modalities),
        is_own=False,
        has_logprobs=settings.has_logprobs,
    )
