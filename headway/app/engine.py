"""One model's engines as a server has them: their pool, and what is counted of it."""

import sys

import msgspec

from headway.app.fleet import OpenedModel, about
from headway.core.base.errors import StartError
from headway.core.messages.health import LoadProgress, StepReport
from headway.service.control.pool import ModelPool, Replica
from headway.service.control.replica_set import ReplicaSet, by_load, by_prefix
from headway.service.control.supervise import Observers, Supervisor
from headway.service.gateway.totals import PoolTotals
from headway.service.loaders.progress import ConsoleProgress
from headway.service.observe.clock import SystemClock


class Engine:
    """One model's pool, and what is counted of it."""

    def __init__(self, model: OpenedModel, clock: SystemClock, progress: ConsoleProgress) -> None:
        self.model = model
        self.totals = PoolTotals()
        self._clock = clock
        self._progress = progress
        settings, spec = model.settings, model.spec()

        def one(name: str, observers: Observers) -> Supervisor:
            own = msgspec.structs.replace(spec, replica=name)
            return Supervisor(own, settings.supervisor, clock, observers)

        def make(observers: Observers) -> Replica:
            if settings.pool.replicas == 1:
                return Supervisor(spec, settings.supervisor, clock, observers)
            has_cache = settings.engine.enable_prefix_caching
            factor = settings.pool.route.factor
            policy = by_prefix(model.card.name, factor) if has_cache else by_load
            return ReplicaSet(settings.pool, one, policy, clock, observers)

        observers = Observers(on_report=self._observe, on_load=self._show_load)
        self.pool = ModelPool(model.name, settings.residency, make, clock, observers)

    async def wait_ready(self) -> None:
        """Wait for its load at start, if there is one; raises StartError."""
        try:
            await self.pool.wait_ready()
        except StartError as error:
            raise about(self.model, error) from error

    def _observe(self, _: StepReport) -> None:
        self.totals.observe(self.pool.view(), self._clock.now())

    def _show_load(self, progress: LoadProgress) -> None:
        view = self.pool.view()
        if view.restarts > 0 or view.loads > 0 or view.on_demand:
            return
        if progress.stage == "weights":
            of = f" of {self.model.name}" if self.model.where else ""
            self._progress(f"loading the weights{of}", progress.done, progress.total)
        elif progress.stage == "kernels":
            print("compiling the kernels, 20 to 30 s, once on this machine", file=sys.stderr)
