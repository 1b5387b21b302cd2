"""The paths that only tell something: health, models, metrics, the API's description."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.units import Seconds
from headway.core.sched.pressure import Rung
from headway.service.gateway.http import JSON, Exchange, Header
from headway.service.gateway.models import Models
from headway.service.observe.prometheus import Exporter
from headway.service.openai.answer_schema import VersionInfo
from headway.service.openai.limits import ApiLimits
from headway.service.openai.openapi import docs_page, openapi
from headway.service.wire.transport import ReplicaState, ReplicaView

MODEL_PREFIX = "/v1/models/"
DRAINING, SHUTTING_DOWN = "draining", "the server is shutting down"
CAN_ANSWER = frozenset({ReplicaState.READY, ReplicaState.UNLOADED, ReplicaState.UNLOADING})
RUNGS = tuple(rung.name.lower() for rung in Rung)


class Page(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


class Condition:
    """Whether this server is alive, and whether it can answer now.

    `views` are of all models by their names. One that is loaded on demand can answer unless
    its last load failed; the server can while any of its models can, and is alive while any is:
    what ends or drains a server would end the others' streams too.
    """

    def __init__(self, views: Mapping[str, Callable[[], ReplicaView]], live_timeout: float) -> None:
        self._views = views
        self._live_timeout = live_timeout
        self._stop_s: Seconds | None = None  # how long a stop may still take; None: not stopping

    def stop_within(self, seconds: Seconds) -> None:
        """This server is draining from now on."""
        self._stop_s = seconds

    def health(self) -> Page:
        """200 while alive, which a loading, restarting or draining server is too.

        503 once no engine can come back by itself, or has made progress for longer than
        the limit although work is pending.
        """
        views = {name: view() for name, view in self._views.items()}
        alive = {name for name, view in views.items() if self._is_alive(view)}
        return _told(views, bool(alive), _first(views, alive))

    def ready(self, model: str | None = None) -> Page:
        """200 only when a request that comes now, for any or for one model, would be answered.

        Not before everything that is loaded at start has been loaded.
        """
        if self._stop_s is not None:
            return _page(503, {"state": DRAINING, "reason": SHUTTING_DOWN}, self._stop_s)
        views = {
            name: view() for name, view in self._views.items() if model is None or name == model
        }
        can = {name for name, view in views.items() if _can_answer(view)}
        first_loads = {name for name, view in views.items() if _is_first_load(view)}
        is_ready = bool(can) and not first_loads
        return _told(views, is_ready, _first(views, first_loads or can), with_rung=True)

    def _is_alive(self, view: ReplicaView) -> bool:
        is_stuck = view.state is ReplicaState.STALLED and view.since_s > self._live_timeout
        return not is_stuck and view.state is not ReplicaState.FAILED


# An exchange, and names of the models that its caller may use (empty: all).
Show = Callable[[Exchange, Sequence[str]], Page]


class Pages:
    """All pages by path; those under /v1 need a key where one is set."""

    def __init__(
        self,
        condition: Condition,
        models: Models,
        exporter: Exporter,
        version: str,
        limits: ApiLimits,
    ) -> None:
        self._condition = condition
        self._models = models
        self._exporter = exporter
        version_body = msgspec.json.encode(VersionInfo(version=version))
        description, docs = _described(version, limits)
        self._by_path: Mapping[str, Show] = {
            "/health": lambda *_: condition.health(),
            "/ready": self._ready,
            "/version": lambda *_: Page(200, version_body),
            "/metrics": self._metrics,
            "/openapi.json": lambda *_: Page(200, description),
            "/docs": lambda *_: Page(200, docs, b"text/html; charset=utf-8"),
            "/v1/models": lambda _, allowed: Page(200, self._models.listing(allowed)),
        }

    def find(self, path: str) -> Show | None:
        """The page at a path, if there is one."""
        if path.startswith(MODEL_PREFIX) and len(path) > len(MODEL_PREFIX):
            return self._model
        return self._by_path.get(path)

    def _metrics(self, exchange: Exchange, _: Sequence[str]) -> Page:
        body, content_type = self._exporter.render(exchange.header("accept"))
        return Page(200, body, content_type.encode("ascii"))

    def _ready(self, exchange: Exchange, _: Sequence[str]) -> Page:
        asked = exchange.query("model")
        name = None if asked is None else self._models.find(asked).name
        return self._condition.ready(name)

    def _model(self, exchange: Exchange, allowed: Sequence[str]) -> Page:
        return Page(200, self._models.one(exchange.path.removeprefix(MODEL_PREFIX), allowed))


def _is_first_load(view: ReplicaView) -> bool:
    return view.state is ReplicaState.STARTING and view.loads == 0 and not view.on_demand


def _can_answer(view: ReplicaView) -> bool:
    return view.state in CAN_ANSWER or (view.on_demand and view.state is ReplicaState.STARTING)


def _first(views: Mapping[str, ReplicaView], names: Collection[str]) -> ReplicaView:
    """The view that speaks for all: the first of these, else of all."""
    return next((view for name, view in views.items() if name in names), next(iter(views.values())))


def _told(
    views: Mapping[str, ReplicaView],
    is_well: bool,
    speaker: ReplicaView,
    *,
    with_rung: bool = False,
) -> Page:
    told: dict[str, object] = _of(speaker, with_rung=with_rung)
    if len(views) > 1:
        told["models"] = {name: _of(view, with_rung=with_rung) for name, view in views.items()}
    return _page(200 if is_well else 503, told, speaker.retry_after_s)


def _of(view: ReplicaView, *, with_rung: bool) -> dict[str, object]:
    told: dict[str, object] = {"state": view.state.value, "reason": view.reason}
    if with_rung and view.status is not None:
        told["rung"] = RUNGS[view.status.rung]
    if view.members:
        told["replicas"] = [
            {"replica": each.id, "is_ejected": each.is_ejected}
            | _of(each.view, with_rung=with_rung)
            for each in view.members
        ]
    return told


def _page(status: int, told: Mapping[str, object], retry_after_s: float) -> Page:
    body = msgspec.json.encode(told)
    if status == 200:
        return Page(status, body)
    wait = str(max(1, round(retry_after_s))).encode("ascii")
    return Page(status, body, headers=((b"retry-after", wait),))


@functools.lru_cache(maxsize=4)
def _described(version: str, limits: ApiLimits) -> tuple[bytes, bytes]:
    """The API for programs and for people; making them takes longer than all other pages."""
    document = openapi(version, limits)
    return msgspec.json.encode(document), docs_page(version, document)
