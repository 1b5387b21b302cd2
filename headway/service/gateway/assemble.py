"""The gateway put together from its settings, its models and their pools."""

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.base.clock import Clock
from headway.core.base.metrics import CATALOGUE
from headway.core.engine.settings import EngineSettings, waiting_limit
from headway.core.fleet.metrics import FLEET_CATALOGUE
from headway.core.route.admit import AdmitLimits, Admitter
from headway.core.tenancy.metrics import CLASS_CATALOGUE
from headway.service.gateway.encode import Encoder
from headway.service.gateway.gauges import EngineTotals, Gauges
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory, ServedModel
from headway.service.gateway.models import Models, Served
from headway.service.gateway.pages import Condition, Pages
from headway.service.gateway.relay import Relay, Seeds
from headway.service.gateway.server import Gateway, Parts
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.tokens import TokenPages
from headway.service.observe.prometheus import Exporter, Labelled
from headway.service.openai.limits import ApiLimits
from headway.service.wire.transport import Pool

NO_MODEL = "unknown"  # label of requests that end before their model is known, beside several


class ModelNeeds(NamedTuple):
    """What one model brings."""

    model: ServedModel
    engine: EngineSettings
    encoder: Encoder
    pool: Pool
    totals: EngineTotals


class GatewayNeeds(NamedTuple):
    """All that the gateway is made from."""

    settings: GatewaySettings
    api_limits: ApiLimits
    seed: int | None
    models: Sequence[ModelNeeds]  # at least one; the first is the default
    clock: Clock
    version: str


class Assembled(NamedTuple):
    """The application, and what else its process has to call."""

    gateway: Gateway
    models: Models
    exporter: Exporter


def assemble(needs: GatewayNeeds) -> Assembled:
    """Build every part once; to be called on the event loop."""
    exporter = Exporter((*CATALOGUE, *CLASS_CATALOGUE, *FLEET_CATALOGUE), {})
    models = Models([_serve(each, needs, exporter) for each in needs.models])
    condition = Condition(
        {each.model.names[0]: each.pool.view for each in needs.models}, needs.settings.live_timeout
    )
    parts = Parts(
        settings=needs.settings,
        api_limits=needs.api_limits,
        clock=needs.clock,
        models=models,
        meter=models.default.meter
        if len(models.all) == 1
        else Meter(_labelled(exporter, NO_MODEL), needs.clock, NO_MODEL),
        condition=condition,
        pages=Pages(condition, models, exporter, needs.version, needs.api_limits),
        token_pages=TokenPages(models, needs.api_limits),
        fingerprint=f"headway-{needs.version}",
    )
    return Assembled(Gateway(parts), models, exporter)


def admit_limits(engine: EngineSettings, context_length: int) -> AdmitLimits:
    """The queue's bounds, the same as the engine's own."""
    return AdmitLimits(
        max_choices=engine.max_num_seqs + engine.max_waiting_requests,
        max_waiting_tokens=waiting_limit(engine, context_length),
    )


def _serve(each: ModelNeeds, needs: GatewayNeeds, exporter: Exporter) -> Served:
    """One model's own parts: its queue, its threads, its counters."""
    labelled = _labelled(exporter, each.model.names[0])
    meter = Meter(labelled, needs.clock, each.model.names[0])
    admitter = Admitter(admit_limits(each.engine, each.model.context_length))
    has_cache = each.engine.enable_prefix_caching
    gauges = Gauges(each.pool, admitter, meter, each.totals, has_prefix_cache=has_cache)
    labelled.add_source(gauges.samples)
    seeds, limits = Seeds(needs.seed), needs.api_limits
    return Served(
        directory=Directory(each.model, each.pool.view),
        encoder=each.encoder,
        admitter=admitter,
        relay=Relay(each.pool, admitter, each.encoder, needs.clock, seeds, limits),
        meter=meter,
        gauges=gauges,
    )


def _labelled(exporter: Exporter, name: str) -> Labelled:
    return Labelled(exporter, {"model": name, "model_name": name, "engine": "0"})
