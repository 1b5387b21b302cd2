"""What each model brings to the gateway, and its own parts made of that, once."""

from typing import NamedTuple

from headway.core.base.clock import Clock
from headway.core.engine.settings import EngineSettings, waiting_limit
from headway.core.route.admit import AdmitLimits, Admitter
from headway.core.route.table import PoolFacts
from headway.service.gateway.encode import Encoder
from headway.service.gateway.forwarded import ServedUpstream, admit_limits_of
from headway.service.gateway.gauges import Gauges
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory, ServedModel
from headway.service.gateway.models import AnyServed, Served
from headway.service.gateway.relay import Relay, Seeds
from headway.service.gateway.totals import PoolTotals
from headway.service.observe.prometheus import Exporter, Labelled
from headway.service.openai.limits import ApiLimits
from headway.service.upstream.forward import Forwarder
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import facts_of
from headway.service.wire.transport import Pool


class ModelNeeds(NamedTuple):
    """What one model brings."""

    model: ServedModel
    engine: EngineSettings
    encoder: Encoder
    pool: Pool
    totals: PoolTotals
    modalities: tuple[str, ...] = ()  # that it takes beside text
    replicas: int = 1

    @property
    def facts(self) -> PoolFacts:
        """What routes have to know of it."""
        return PoolFacts(names=self.model.names, modalities=self.modalities)


class UpstreamNeeds(NamedTuple):
    """What one model behind other servers brings."""

    pool: UpstreamPool
    created: int  # Unix time

    @property
    def facts(self) -> PoolFacts:
        """What routes have to know of it."""
        return facts_of(self.pool.settings)


AnyNeeds = ModelNeeds | UpstreamNeeds


class Serving:
    """Makes a model's own parts: its queue, its threads, its counters.

    A model that takes the place of another one of its name goes on with that one's counters.
    """

    def __init__(
        self, exporter: Exporter, clock: Clock, seed: int | None, limits: ApiLimits
    ) -> None:
        self._exporter = exporter
        self._clock = clock
        self._seed = seed
        self._limits = limits
        self._meters: dict[str, Meter] = {}  # by a model's first name
        self._made: dict[int, AnyServed] = {}  # by its pool

    def of(self, each: AnyNeeds) -> AnyServed:
        """The parts of one model; the same again for the same pool."""
        key = id(each.pool)
        if key not in self._made:
            make = self._upstream(each) if isinstance(each, UpstreamNeeds) else self._own(each)
            self._made[key] = make
        return self._made[key]

    def forget(self, each: AnyNeeds) -> None:
        """It is served no more."""
        self._made.pop(id(each.pool), None)

    def meter(self, name: str) -> Meter:
        """What counts the requests of the model of this first name."""
        if name not in self._meters:
            labels = {"model": name, "model_name": name, "engine": "0"}
            self._meters[name] = Meter(Labelled(self._exporter, labels), self._clock, name)
        return self._meters[name]

    def _own(self, each: ModelNeeds) -> Served:
        meter = self.meter(each.model.names[0])
        admitter = Admitter(admit_limits(each.engine, each.model.context_length, each.replicas))
        has_cache = each.engine.enable_prefix_caching
        seeds, limits = Seeds(self._seed), self._limits
        return Served(
            directory=Directory(each.model, each.pool.view),
            encoder=each.encoder,
            admitter=admitter,
            relay=Relay(each.pool, admitter, each.encoder, self._clock, seeds, limits),
            meter=meter,
            gauges=Gauges(each.pool, admitter, meter, each.totals, has_prefix_cache=has_cache),
        )

    def _upstream(self, each: UpstreamNeeds) -> ServedUpstream:
        meter = self.meter(each.pool.settings.names[0])
        admitter = Admitter(admit_limits_of(each.pool.settings))
        forwarder = Forwarder(each.pool, admitter, self._clock, meter.exporter)
        return ServedUpstream(each.pool, admitter, forwarder, meter, each.created)


def admit_limits(engine: EngineSettings, context_length: int, replicas: int = 1) -> AdmitLimits:
    """The queue's bounds, the same as those of all its engines together."""
    return AdmitLimits(
        max_choices=replicas * (engine.max_num_seqs + engine.max_waiting_requests),
        max_waiting_tokens=replicas * waiting_limit(engine, context_length),
    )
