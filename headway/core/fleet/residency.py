"""When one model's engine is loaded, drained and unloaded. Decides; others do it.

    UNLOADED --> LOADING --> LOADED --> DRAINING --> UNLOADING --> UNLOADED
                    |           \\______ idle _______/
                    v
                 FAILED --> LOADING   after a pause, when a request wants it

A request *waits* from its arrival until the engine can answer, then it *runs*. An engine is
unloaded only while nothing runs; what waits meanwhile is served by the next load.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

import msgspec

from headway.core.base.units import Seconds

DEFAULT_LOAD_WAIT = Seconds(60.0)  # of a request, for a model that is loaded on demand
UNKNOWN_LOAD = Seconds(5.0)  # what a load is taken for before one has been measured
LEAST_RETRY = Seconds(1.0)
PAUSE_FIRST = Seconds(5.0)  # after a load that failed; doubles with each in a row
PAUSE_LIMIT = Seconds(300.0)


class LoadWhen(StrEnum):
    """When a model is loaded for the first time."""

    START = "start"
    DEMAND = "demand"


class ResidencySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long one model stays in memory; times in seconds."""

    load: str = LoadWhen.START  # a LoadWhen
    idle_unload: float = 0.0  # without a request, after which it is unloaded; 0: never
    load_wait: float | None = None  # most that a request waits for a load; None: by `load`


class Stage(Enum):
    """Where a model is between disk and memory."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"  # its engine runs, or is being started again after a death
    DRAINING = "draining"  # what runs ends, what comes waits for the next load
    UNLOADING = "unloading"
    FAILED = "failed"  # the last load failed


NEXT: Mapping[Stage, frozenset[Stage]] = {
    Stage.UNLOADED: frozenset({Stage.LOADING}),
    Stage.LOADING: frozenset({Stage.LOADED, Stage.FAILED}),
    Stage.LOADED: frozenset({Stage.DRAINING, Stage.UNLOADING}),
    Stage.DRAINING: frozenset({Stage.UNLOADING}),
    Stage.UNLOADING: frozenset({Stage.UNLOADED}),
    Stage.FAILED: frozenset({Stage.LOADING}),
}


class Action(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    LOAD = "load"
    UNLOAD = "unload"


class Counts(msgspec.Struct):
    """What has happened so far, for metrics."""

    loads: int = 0
    failed_loads: int = 0
    unloads: int = 0
    last_load_s: float | None = None  # how long the last one took


class Residency:
    """One model: its stage, and the requests that need it."""

    def __init__(self, settings: ResidencySettings, now: Seconds) -> None:
        self.settings = settings
        self.stage = Stage.UNLOADED
        self.since = now
        self.counts = Counts()
        self.is_wanted = settings.load == LoadWhen.START  # to be loaded as soon as it can be
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._idle_since = now
        self._failures = 0  # in a row

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the engine."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that the engine may be working on."""
        return len(self._running)

    def patience(self, budget_s: float | None) -> float:
        """Seconds that a request may wait for the engine.

        budget_s  what is left until its first token is due; None: nothing was promised
        """
        wait = self.settings.load_wait
        if wait is None:
            wait = DEFAULT_LOAD_WAIT if self.settings.load == LoadWhen.DEMAND else 0.0
        return wait if budget_s is None else min(wait, budget_s)

    def wait(self, request_id: str, now: Seconds) -> None:
        """A request needs the engine: it is loaded if it is not, but not right after a failure."""
        self._waiting.add(request_id)
        if self.stage is not Stage.FAILED or now >= self.since + self._pause():
            self.is_wanted = True

    def run(self, request_id: str) -> None:
        """The engine can answer and takes the request; the engine is not unloaded meanwhile."""
        assert self.stage is Stage.LOADED, self.stage
        self._waiting.discard(request_id)
        self._running.add(request_id)

    def leave(self, request_id: str, now: Seconds) -> None:
        """The request has ended, however it did; harmless when it is not known."""
        if request_id in self._waiting or request_id in self._running:
            self._waiting.discard(request_id)
            self._running.discard(request_id)
            self._idle_since = now

    def decide(self, now: Seconds) -> Action:
        """What is to be done; the caller then moves the stage."""
        if self.stage in (Stage.UNLOADED, Stage.FAILED):
            return Action.LOAD if self.is_wanted else Action.NOTHING
        if self.stage is Stage.DRAINING and not self._running:
            return Action.UNLOAD
        due = self.idle_due()
        if due is not None and now >= due:
            return Action.UNLOAD
        return Action.NOTHING

    def idle_due(self) -> Seconds | None:
        """When it is to be unloaded if no request comes; None: not at all."""
        limit = self.settings.idle_unload
        if self.stage is not Stage.LOADED or limit <= 0 or self._waiting or self._running:
            return None
        return Seconds(self._idle_since + limit)

    def loading(self, now: Seconds) -> None:
        """Its engine is being started."""
        self.is_wanted = False
        self._move(Stage.LOADING, now)

    def loaded(self, now: Seconds) -> None:
        """The engine can answer."""
        self.counts.loads += 1
        self.counts.last_load_s = now - self.since
        self._failures = 0
        self._idle_since = now
        self.is_wanted = False
        self._move(Stage.LOADED, now)

    def failed(self, now: Seconds) -> None:
        """The engine could not be started."""
        self.counts.failed_loads += 1
        self._failures += 1
        self.is_wanted = False
        self._move(Stage.FAILED, now)

    def drain(self, now: Seconds) -> bool:
        """Unload as soon as nothing runs; False when it is not loaded."""
        if self.stage is not Stage.LOADED:
            return False
        self.is_wanted = bool(self._waiting)
        self._move(Stage.DRAINING, now)
        return True

    def unloading(self, now: Seconds) -> None:
        """Its engine is being ended."""
        assert not self._running, f"{len(self._running)} requests run"
        self.is_wanted = bool(self._waiting)
        self._move(Stage.UNLOADING, now)

    def unloaded(self, now: Seconds) -> None:
        """Its memory is free."""
        self.counts.unloads += 1
        self._move(Stage.UNLOADED, now)

    def expected_s(self, now: Seconds) -> float | None:
        """Seconds until the engine can answer, by the last load; None when none was measured."""
        last = self.counts.last_load_s
        if last is None:
            return None
        return max(0.0, last - (now - self.since)) if self.stage is Stage.LOADING else last

    def retry_after(self, now: Seconds) -> Seconds:
        """When a client that is refused now should come again."""
        if self.stage is Stage.FAILED and not self.is_wanted:
            return Seconds(max(LEAST_RETRY, self.since + self._pause() - now))
        expected = self.expected_s(now)
        if expected is None:
            spent = now - self.since if self.stage is Stage.LOADING else 0.0
            expected = UNKNOWN_LOAD - spent
        return Seconds(max(LEAST_RETRY, expected))

    def _pause(self) -> float:
        return min(PAUSE_LIMIT, PAUSE_FIRST * 2.0 ** min(max(0, self._failures - 1), 30))

    def _move(self, to: Stage, now: Seconds) -> None:
        assert to in NEXT[self.stage], f"model: {self.stage.name} -> {to.name}"
        self.stage = to
        self.since = now
