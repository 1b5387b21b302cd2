"""The paths that only tell something: health, models, metrics, the API's description."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from headway.core.base.units import Seconds
from headway.core.sched.pressure import Rung
from headway.service.gateway.http import JSON, Exchange, Header
from headway.service.gateway.model import Directory
from headway.service.observe.prometheus import Exporter
from headway.service.openai.answer_schema import VersionInfo
from headway.service.openai.openapi import docs_page, openapi
from headway.service.wire.transport import ReplicaState, ReplicaView

MODEL_PREFIX = "/v1/models/"
DRAINING = "draining"
RUNGS = tuple(rung.name.lower() for rung in Rung)


class Page(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


class Condition:
    """Whether this server is alive, and whether it can answer now."""

    def __init__(self, view: Callable[[], ReplicaView], live_timeout: float) -> None:
        self._view = view
        self._live_timeout = live_timeout
        self._stop_s: Seconds | None = None  # how long a stop may still take; None: not stopping

    def stop_within(self, seconds: Seconds) -> None:
        """This server is draining from now on."""
        self._stop_s = seconds

    def health(self) -> Page:
        """200 while alive, which a loading, restarting or draining server is too.

        503 once the engine can never come back by itself, or has made no progress for
        longer than the limit although work is pending.
        """
        view = self._view()
        stuck = view.state is ReplicaState.STALLED and view.since_s > self._live_timeout
        is_alive = not stuck and view.state is not ReplicaState.FAILED
        return _told(200 if is_alive else 503, view.state.value, view.reason, view.retry_after_s)

    def ready(self) -> Page:
        """200 only when a request that comes now would be answered."""
        if self._stop_s is not None:
            return _told(503, DRAINING, "the server is shutting down", self._stop_s)
        view = self._view()
        status = 200 if view.state is ReplicaState.READY else 503
        rung = None if view.status is None else RUNGS[view.status.rung]
        return _told(status, view.state.value, view.reason, view.retry_after_s, rung)


class Pages:
    """All pages by path; those under /v1 need a key where one is set."""

    def __init__(
        self, condition: Condition, directory: Directory, exporter: Exporter, version: str
    ) -> None:
        self._directory = directory
        self._exporter = exporter
        version_body = msgspec.json.encode(VersionInfo(version=version))
        description = msgspec.json.encode(openapi(version))
        docs = docs_page(version)
        self._by_path: Mapping[str, Callable[[Exchange], Page]] = {
            "/health": lambda _: condition.health(),
            "/ready": lambda _: condition.ready(),
            "/version": lambda _: Page(200, version_body),
            "/metrics": self._metrics,
            "/openapi.json": lambda _: Page(200, description),
            "/docs": lambda _: Page(200, docs, b"text/html; charset=utf-8"),
            "/v1/models": lambda _: Page(200, self._directory.listing()),
        }

    def find(self, path: str) -> Callable[[Exchange], Page] | None:
        """The page at a path, if there is one."""
        if path.startswith(MODEL_PREFIX) and len(path) > len(MODEL_PREFIX):
            return self._model
        return self._by_path.get(path)

    def _metrics(self, exchange: Exchange) -> Page:
        body, content_type = self._exporter.render(exchange.header("accept"))
        return Page(200, body, content_type.encode("ascii"))

    def _model(self, exchange: Exchange) -> Page:
        return Page(200, self._directory.one(exchange.path.removeprefix(MODEL_PREFIX)))


def _told(
    status: int, state: str, reason: str, retry_after_s: float, rung: str | None = None
) -> Page:
    told = {"state": state, "reason": reason}
    body = msgspec.json.encode(told if rung is None else told | {"rung": rung})
    if status == 200:
        return Page(status, body)
    wait = str(max(1, round(retry_after_s))).encode("ascii")
    return Page(status, body, headers=((b"retry-after", wait),))
