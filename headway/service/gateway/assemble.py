"""The gateway put together from its settings, a model and a transport."""

from typing import NamedTuple

from headway.core.base.clock import Clock
from headway.core.base.metrics import CATALOGUE
from headway.core.engine.settings import EngineSettings, waiting_limit
from headway.core.route.admit import AdmitLimits, Admitter
from headway.service.gateway.encode import Encoder
from headway.service.gateway.gauges import EngineTotals, Gauges
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory, ServedModel
from headway.service.gateway.pages import Condition, Pages
from headway.service.gateway.relay import Relay, Seeds
from headway.service.gateway.server import Gateway, Parts
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.tokens import TokenPages
from headway.service.observe.prometheus import Exporter
from headway.service.openai.limits import ApiLimits
from headway.service.wire.transport import Transport


class GatewayNeeds(NamedTuple):
    """All that the gateway is made from."""

    settings: GatewaySettings
    api_limits: ApiLimits
    engine: EngineSettings
    seed: int | None
    model: ServedModel
    encoder: Encoder
    replica: Transport
    totals: EngineTotals
    clock: Clock
    version: str


class Assembled(NamedTuple):
    """The application, and what else its process has to call."""

    gateway: Gateway
    gauges: Gauges
    admitter: Admitter
    exporter: Exporter


def assemble(needs: GatewayNeeds) -> Assembled:
    """Build every part once; to be called on the event loop."""
    name = needs.model.names[0]
    exporter = Exporter(CATALOGUE, {"model": name, "model_name": name, "engine": "0"})
    meter = Meter(exporter, needs.clock)
    admitter = Admitter(admit_limits(needs.engine, needs.model.context_length))
    gauges = Gauges(
        needs.replica,
        admitter,
        meter,
        needs.totals,
        has_prefix_cache=needs.engine.enable_prefix_caching,
    )
    exporter.add_source(gauges.samples)
    directory = Directory(needs.model, needs.replica.view)
    condition = Condition(needs.replica.view, needs.settings.live_timeout)
    seeds = Seeds(needs.seed)
    relay = Relay(needs.replica, admitter, needs.encoder, needs.clock, seeds, needs.api_limits)
    parts = Parts(
        settings=needs.settings,
        api_limits=needs.api_limits,
        clock=needs.clock,
        admitter=admitter,
        relay=relay,
        encoder=needs.encoder,
        meter=meter,
        directory=directory,
        condition=condition,
        pages=Pages(condition, directory, exporter, needs.version),
        token_pages=TokenPages(needs.encoder, directory, needs.api_limits),
        fingerprint=f"headway-{needs.version}",
    )
    return Assembled(Gateway(parts), gauges, admitter, exporter)


def admit_limits(engine: EngineSettings, context_length: int) -> AdmitLimits:
    """The queue's bounds, the same as the engine's own."""
    return AdmitLimits(
        max_choices=engine.max_num_seqs + engine.max_waiting_requests,
        max_waiting_tokens=waiting_limit(engine, context_length),
    )
