"""The pool of one model: its replica is loaded, kept, drained and unloaded as residency decides."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from headway.core.base.clock import Clock
from headway.core.base.errors import StartError
from headway.core.fleet.residency import Action, LoadWhen, Residency, ResidencySettings, Stage
from headway.core.messages.health import ReplicaHello
from headway.core.messages.path import EngineRequest
from headway.service.control.supervise import Observers
from headway.service.control.waiting import until_set
from headway.service.wire.transport import Mailbox, ReplicaState, ReplicaView, Transport

log = logging.getLogger(__name__)

STATES = {
    Stage.UNLOADED: ReplicaState.UNLOADED,
    Stage.LOADING: ReplicaState.STARTING,
    Stage.DRAINING: ReplicaState.UNLOADING,
    Stage.UNLOADING: ReplicaState.UNLOADING,
    Stage.FAILED: ReplicaState.FAILED,
}


class Replica(Transport, Protocol):
    """One process that can be started once and ended; the Supervisor is one."""

    def start(self) -> None:
        """Begin to start it; returns at once."""
        ...

    async def wait_ready(self) -> ReplicaHello:
        """Wait for the first start; raises StartError."""
        ...

    async def stop(self) -> None:
        """End it; returns when no child is left."""
        ...


MakeReplica = Callable[[Observers], Replica]


class ModelPool:
    """The Pool of one model with one replica.

        pool = ModelPool("small", ResidencySettings(), make, clock)
        pool.start()
        await pool.wait_ready()  # StartError names what is wrong, if it is loaded at start
        ...
        await pool.stop()

    Every load is a replica of its own. All methods belong to the event loop; nothing here
    waits for another pool.
    """

    def __init__(
        self,
        name: str,
        settings: ResidencySettings,
        make: MakeReplica,
        clock: Clock,
        observers: Observers | None = None,
    ) -> None:
        self.name = name
        self._make = make
        self._clock = clock
        self._observers = observers or Observers()
        self._residency = Residency(settings, clock.now())
        self._replica: Replica | None = None
        self._reason = "not loaded; a request for it loads it"
        self._restarts = 0  # of replicas that are gone
        self._moved = asyncio.Event()  # set, and replaced, at every change
        self._first: asyncio.Future[StartError | None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to load it, if that is to be done at start; returns at once."""
        assert self._keeper is None, "a pool starts once"
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        if self._residency.settings.load == LoadWhen.DEMAND:
            self._first.set_result(None)
        self._keeper = loop.create_task(self._keep(), name=f"pool-{self.name}")

    async def wait_ready(self) -> None:
        """Wait until it has loaded, if that is to be done at start; raises StartError."""
        assert self._first is not None, "not started"
        error = await asyncio.shield(self._first)
        if error is not None:
            raise error

    async def stop(self) -> None:
        """End its process, at once if it is loading; returns when no child is left."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        if self._replica is not None:
            await self._replica.stop()
        self._settle(StartError("stopped before the engine had started"))
        self._tell()

    async def drain(self) -> None:
        """Unload once every request that runs has ended; returns when its memory is free.

        Requests that come meanwhile wait, and have it loaded again.
        """
        if not self._residency.drain(self._clock.now()):
            return
        unloads = self._residency.counts.unloads
        self._tell()
        while self._residency.counts.unloads == unloads and self._keeper is not None:
            await self._moved.wait()

    def residency(self) -> Residency:
        """Where the model is between disk and memory."""
        return self._residency

    def view(self) -> ReplicaView:
        """The replica's, with what the pool knows beside it; never blocks."""
        now, residency = self._clock.now(), self._residency
        is_on_demand = residency.settings.load == LoadWhen.DEMAND
        is_gone = residency.stage in (Stage.UNLOADED, Stage.FAILED)
        seen = self._replica.view() if self._replica is not None and not is_gone else None
        if seen is None:
            return ReplicaView(
                state=STATES[residency.stage],
                reason=self._reason,
                since_s=now - residency.since,
                restarts=self._restarts,
                retry_after_s=residency.retry_after(now),
                hello=None,
                status=None,
                loads=residency.counts.loads,
                on_demand=is_on_demand,
            )
        is_loading = residency.stage is Stage.LOADING and residency.counts.last_load_s is not None
        is_leaving = residency.stage in (Stage.DRAINING, Stage.UNLOADING)
        return msgspec.structs.replace(
            seen,
            state=ReplicaState.UNLOADING if is_leaving else seen.state,
            reason="being unloaded" if is_leaving else seen.reason,
            restarts=self._restarts + seen.restarts,
            retry_after_s=residency.retry_after(now)
            if is_loading or is_leaving
            else seen.retry_after_s,
            loads=residency.counts.loads,
            on_demand=is_on_demand,
        )

    async def hold(self, request_id: str, budget_s: float | None) -> float:
        """Wait until it can answer and keep it loaded: the seconds; raises ReplicaNotReady."""
        residency, began = self._residency, self._clock.now()
        waited = 0.0
        residency.wait(request_id, began)
        if residency.decide(began) is Action.LOAD:
            self._tell()
        until = began + residency.patience(budget_s)
        while (view := self.view()).state is not ReplicaState.READY:
            left = until - self._clock.now()
            if left <= 0 or self._is_vain(view, left):
                raise view.refusal()
            await until_set(self._moved, left)
            waited = self._clock.now() - began
        residency.run(request_id)
        return waited

    def release(self, request_id: str) -> None:
        """The request has ended."""
        residency = self._residency
        residency.leave(request_id, self._clock.now())
        if residency.idle_due() is not None or residency.stage is Stage.DRAINING:
            self._tell()

    def call(self, request: EngineRequest) -> Mailbox:
        """Send a request; raises ReplicaNotReady unless it can answer."""
        if self._replica is None:
            raise self.view().refusal()
        return self._replica.call(request)

    def cancel(self, request_id: str) -> None:
        """Have the replica free what the request holds."""
        if self._replica is not None:
            self._replica.cancel(request_id)

    def _is_vain(self, view: ReplicaView, left_s: float) -> bool:
        """Whether waiting so long would not help: better to say so at once."""
        residency = self._residency
        if residency.stage is Stage.FAILED:
            return not residency.is_wanted
        if view.state in (ReplicaState.STOPPED, ReplicaState.FAILED):
            return True
        if residency.stage is Stage.LOADED:  # it died, or is stuck
            return view.state is not ReplicaState.STARTING
        expected = residency.expected_s(self._clock.now())
        return expected is not None and expected > left_s

    async def _keep(self) -> None:
        """Do what residency decides, one thing after the other."""
        try:
            while True:
                moved = self._moved
                action = self._residency.decide(self._clock.now())
                if action is Action.LOAD:
                    await self._load()
                elif action is Action.UNLOAD:
                    await self._unload()
                else:
                    await until_set(moved, self._idle_left())
        except Exception:
            log.exception("pool_failed", extra={"model": self.name})
            self._settle(StartError(f"the pool of {self.name} failed; the log has the place"))

    def _idle_left(self) -> float | None:
        due = self._residency.idle_due()
        return None if due is None else max(0.0, due - self._clock.now())

    async def _load(self) -> None:
        self._residency.loading(self._clock.now())
        log.info("pool_loading", extra={"model": self.name})
        error: StartError | None = None
        try:
            self._replica = self._make(self._watching())
            self._replica.start()
            self._tell()
            await self._replica.wait_ready()
        except StartError as failure:
            error = failure
            self._note_failed(failure.message)
            await self._drop()
        else:
            self._note_loaded()
        self._settle(error)
        self._tell()

    async def _unload(self) -> None:
        self._residency.unloading(self._clock.now())
        self._tell()
        await self._drop()
        self._reason = "not loaded; a request for it loads it"
        self._residency.unloaded(self._clock.now())
        log.info("pool_unloaded", extra={"model": self.name})
        self._tell()

    async def _drop(self) -> None:
        if self._replica is not None:
            # Whoever stops the pool meanwhile waits for the same end.
            await asyncio.shield(asyncio.ensure_future(self._replica.stop()))
            self._restarts += self._replica.view().restarts
            self._replica = None

    def _watching(self) -> Observers:
        outer = self._observers

        def on_state(view: ReplicaView) -> None:
            # At once, so that no request finds it ready and is refused.
            if view.state is ReplicaState.READY:
                self._note_loaded()
            elif view.state is ReplicaState.FAILED:
                self._note_failed(view.reason)
            self._tell()
            outer.on_state(view)

        return Observers(on_report=outer.on_report, on_load=outer.on_load, on_state=on_state)

    def _note_loaded(self) -> None:
        if self._residency.stage is Stage.LOADING:
            self._residency.loaded(self._clock.now())
            took_s = self._residency.counts.last_load_s
            log.info("pool_loaded", extra={"model": self.name, "took_s": took_s})

    def _note_failed(self, cause: str) -> None:
        if self._residency.stage is Stage.LOADING:
            self._reason = cause
            self._residency.failed(self._clock.now())
            log.error("pool_load_failed", extra={"model": self.name, "cause": cause})

    def _settle(self, outcome: StartError | None) -> None:
        """The first load has ended, well or badly; later ones change nothing."""
        if self._first is not None and not self._first.done():
            self._first.set_result(outcome)

    def _tell(self) -> None:
        """Wake whoever waits for a change."""
        self._moved.set()
        self._moved = asyncio.Event()
