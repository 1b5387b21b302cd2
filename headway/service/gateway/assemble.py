"""The gateway put together from its settings, its models and their pools."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from headway.core.base import metrics
from headway.core.base.clock import Clock
from headway.core.engine.settings import EngineSettings, waiting_limit
from headway.core.route.admit import AdmitLimits, Admitter
from headway.core.route.table import PoolFacts, RoutesSettings
from headway.core.tenancy.account_metrics import ADMIN_REFUSED, KEY_CHECKS
from headway.core.tenancy.book import AccountStore
from headway.core.tenancy.tenant import Tenant, read_tenants
from headway.service.gateway.accounts import Accounts, Caller, call_here
from headway.service.gateway.admin import AccountPages
from headway.service.gateway.admin_keys import AdminKeys, check_admin_keys
from headway.service.gateway.admin_routes import AdminRoute, AdminRoutes, RouteTable
from headway.service.gateway.auth import FindTenant, KeyRing, TokenSource
from headway.service.gateway.books import NoLedger, NoLimits, NoPrices
from headway.service.gateway.encode import Encoder
from headway.service.gateway.forwarded import ServedUpstream, admit_limits_of
from headway.service.gateway.gauges import Gauges
from headway.service.gateway.journey import Books
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.limit_answers import LimitRules
from headway.service.gateway.limit_counts import Denials, SharedState, samples
from headway.service.gateway.limit_settings import LimitTable
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory, ServedModel
from headway.service.gateway.models import AnyServed, Models, Served
from headway.service.gateway.pages import Condition, Pages
from headway.service.gateway.relay import Relay, Seeds
from headway.service.gateway.reload import Reloadable
from headway.service.gateway.route_parts import make_routing, make_table
from headway.service.gateway.server import Gateway, Parts
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.tokens import TokenPages
from headway.service.gateway.totals import PoolTotals
from headway.service.observe.catalogue import EVERYTHING
from headway.service.observe.prometheus import Exporter, Labelled, Sample
from headway.service.openai.limits import ApiLimits
from headway.service.upstream.forward import Forwarder
from headway.service.upstream.pool import UpstreamPool
from headway.service.upstream.settings import facts_of
from headway.service.wire.transport import Pool

NO_MODEL = "unknown"  # label of requests that end before their model is known, beside several


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
    def names(self) -> tuple[str, ...]:
        """For clients; the first is its own."""
        return self.model.names

    @property
    def facts(self) -> PoolFacts:
        """What routes have to know of it."""
        return PoolFacts(names=self.names, modalities=self.modalities)


class UpstreamNeeds(NamedTuple):
    """What one model behind other servers brings."""

    pool: UpstreamPool
    created: int  # Unix time

    @property
    def names(self) -> tuple[str, ...]:
        """For clients; the first is its own."""
        return self.pool.settings.names

    @property
    def facts(self) -> PoolFacts:
        """What routes have to know of it."""
        return facts_of(self.pool.settings)


class Access(NamedTuple):
    """Where keys and tenants come from, beside those of the settings."""

    store: AccountStore | None = None
    call: Caller = call_here  # runs what the store does off the event loop
    # Makes what checks tokens of an identity provider, from what finds a tenant by its name.
    tokens: Callable[[FindTenant], TokenSource] | None = None
    admin_keys: tuple[str, ...] = ()
    admin_routes: tuple[AdminRoute, ...] = ()  # beside those of tenants and keys
    keys: tuple[tuple[str, Tenant], ...] = ()  # of the configuration file, and whose they are
    tenants: tuple[Tenant, ...] = ()  # of the configuration file, also those without a key


class GatewayNeeds(NamedTuple):
    """All that the gateway is made from."""

    settings: GatewaySettings
    api_limits: ApiLimits
    seed: int | None
    models: Sequence[ModelNeeds | UpstreamNeeds]  # at least one; the first is the default
    clock: Clock
    version: str
    books: Books = Books(NoLimits(), NoLedger(), NoPrices(), time.time, "")
    access: Access = Access()
    keeper: Keeper | None = None  # of the ledger in `books`, if it is to be counted
    rate_limits: LimitTable | None = None  # None: those in `books`
    limit_state: SharedState | None = None  # of the store of `books`, where several share one
    routes: RoutesSettings | None = None  # checked against the models; None: each by its names


class Assembled(NamedTuple):
    """The application, and what else its process has to call."""

    gateway: Gateway
    models: Models
    exporter: Exporter
    accounts: Accounts | None
    tokens: TokenSource | None
    reloadable: Reloadable

    async def load(self) -> None:
        """Read who may use this, before the first request; raises HeadwayError."""
        for each in (self.accounts, self.tokens):
            if each is not None:
                await each.load()

    async def follow(self) -> None:
        """Keep up with changes of that, for ever."""
        await asyncio.gather(
            *(each.follow() for each in (self.accounts, self.tokens) if each is not None)
        )

    def close(self) -> None:
        """End the threads that check keys."""
        if self.accounts is not None:
            self.accounts.close()


def assemble(needs: GatewayNeeds) -> Assembled:
    """Build every part once; to be called on the event loop."""
    exporter = Exporter(EVERYTHING, {})
    if needs.keeper is not None:
        exporter.add_source(needs.keeper.samples)
    if needs.limit_state is not None:
        exporter.add_source(partial(samples, needs.limit_state))
    pools = [each.facts for each in needs.models]
    table = make_table(needs.routes, pools)
    models = Models([_serve(each, needs, exporter) for each in needs.models], table.names)
    condition = Condition(
        {each.names[0]: each.pool.view for each in needs.models}, needs.settings.live_timeout
    )
    accounts = _accounts(needs, exporter)
    known = {tenant.name: tenant for _, tenant in read_tenants(needs.settings.tenant)}
    known |= {tenant.name: tenant for tenant in needs.access.tenants}
    tokens = _tokens(needs, accounts, known)
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
        keys=_key_ring(needs, accounts, tokens),
        admin=_admin(needs, accounts, exporter, known),
        books=needs.books._replace(rules=_rules(needs, exporter)),
        routing=make_routing(table, models, needs.clock, needs.settings.slo_ttft),
    )
    reloadable = Reloadable(
        keys=parts.keys,
        known=known,
        limits=needs.rate_limits or needs.books.rules.table,
        models=models,
        routing=parts.routing,
        pools=pools,
        slo_ttft=needs.settings.slo_ttft,
        api_keys=needs.settings.api_key,
    )
    return Assembled(Gateway(parts), models, exporter, accounts, tokens, reloadable)


def admit_limits(engine: EngineSettings, context_length: int, replicas: int = 1) -> AdmitLimits:
    """The queue's bounds, the same as those of all its engines together."""
    return AdmitLimits(
        max_choices=replicas * (engine.max_num_seqs + engine.max_waiting_requests),
        max_waiting_tokens=replicas * waiting_limit(engine, context_length),
    )


def _serve(each: ModelNeeds | UpstreamNeeds, needs: GatewayNeeds, exporter: Exporter) -> AnyServed:
    """One model's own parts: its queue, its threads, its counters."""
    if isinstance(each, UpstreamNeeds):
        return _forward(each, needs, exporter)
    labelled = _labelled(exporter, each.model.names[0])
    meter = Meter(labelled, needs.clock, each.model.names[0])
    admitter = Admitter(admit_limits(each.engine, each.model.context_length, each.replicas))
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


def _forward(each: UpstreamNeeds, needs: GatewayNeeds, exporter: Exporter) -> ServedUpstream:
    labelled = _labelled(exporter, each.names[0])
    meter = Meter(labelled, needs.clock, each.names[0])
    admitter = Admitter(admit_limits_of(each.pool.settings))
    labelled.add_source(each.pool.samples)
    labelled.add_source(
        lambda: (
            Sample(metrics.IN_FLIGHT, meter.num_open),
            Sample(metrics.QUEUE_LENGTH, admitter.num_waiting),
        )
    )
    forwarder = Forwarder(each.pool, admitter, needs.clock, labelled)
    return ServedUpstream(each.pool, admitter, forwarder, meter, each.created)


def _accounts(needs: GatewayNeeds, exporter: Exporter) -> Accounts | None:
    access = needs.access
    if access.store is None:
        return None
    accounts = Accounts(
        access.store, access.call, lambda result: exporter.add(KEY_CHECKS, result=result)
    )
    exporter.add_source(accounts.samples)
    return accounts


def _tokens(
    needs: GatewayNeeds, accounts: Accounts | None, known: Mapping[str, Tenant]
) -> TokenSource | None:
    """What checks tokens; a tenant of the store goes before one of the settings."""

    def find(name: str) -> Tenant | None:
        record = None if accounts is None else accounts.tenant(name)
        if record is not None:
            return None if record.is_disabled else record.tenant()
        return known.get(name)

    make = needs.access.tokens
    return None if make is None else make(find)


def _key_ring(
    needs: GatewayNeeds, accounts: Accounts | None, tokens: TokenSource | None
) -> KeyRing:
    """Keys of the settings, then of the store, then tokens."""
    settings = needs.settings
    return KeyRing(
        settings.api_key,
        (*read_tenants(settings.tenant), *needs.access.keys),
        [each for each in (accounts, tokens) if each is not None],
        is_closed=bool(needs.access.admin_keys),
    )


def _admin(
    needs: GatewayNeeds,
    accounts: Accounts | None,
    exporter: Exporter,
    known: Mapping[str, Tenant],
) -> AdminRoutes | None:
    access, settings = needs.access, needs.settings
    if not access.admin_keys:
        return None
    of_settings = (*read_tenants(settings.tenant), *access.keys)
    check_admin_keys(access.admin_keys, [*settings.api_key, *(key for key, _ in of_settings)])
    routes = access.admin_routes
    if accounts is not None:
        routes += AccountPages(accounts, known.keys()).routes()
    keys = AdminKeys(access.admin_keys, time.monotonic)
    return AdminRoutes(keys, RouteTable(routes), lambda: exporter.add(ADMIN_REFUSED))


def _rules(needs: GatewayNeeds, exporter: Exporter) -> LimitRules:
    table = needs.rate_limits or needs.books.rules.table
    return needs.books.rules._replace(table=table, on_denied=Denials(exporter, table).count)


def _labelled(exporter: Exporter, name: str) -> Labelled:
    return Labelled(exporter, {"model": name, "model_name": name, "engine": "0"})
