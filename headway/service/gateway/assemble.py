"""The gateway put together from its settings, its models and their pools."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from headway.core.base.clock import Clock
from headway.core.route.table import RoutesSettings
from headway.core.tenancy.account_metrics import ADMIN_REFUSED, KEY_CHECKS
from headway.core.tenancy.book import AccountStore
from headway.core.tenancy.tenant import Tenant, read_tenants
from headway.service.gateway.accounts import Accounts, Caller, call_here
from headway.service.gateway.admin import AccountPages
from headway.service.gateway.admin_keys import AdminKeys, check_admin_keys
from headway.service.gateway.admin_routes import AdminRoute, AdminRoutes, AdminTable
from headway.service.gateway.auth import FindTenant, KeyRing, TokenSource
from headway.service.gateway.books import NoLedger, NoLimits, NoPrices
from headway.service.gateway.journey import Books
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.limit_answers import LimitRules
from headway.service.gateway.limit_counts import Denials, SharedState, samples
from headway.service.gateway.limit_settings import LimitTable
from headway.service.gateway.models import Models
from headway.service.gateway.pages import Condition, Pages
from headway.service.gateway.plan import Plan
from headway.service.gateway.reload import Reloadable
from headway.service.gateway.route_parts import make_chooser, make_table
from headway.service.gateway.routing import Routing
from headway.service.gateway.server import Gateway, Parts
from headway.service.gateway.serving import AnyNeeds, Serving
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.tokens import TokenPages
from headway.service.observe.catalogue import EVERYTHING
from headway.service.observe.prometheus import Exporter
from headway.service.openai.limits import ApiLimits

NO_MODEL = "unknown"  # label of requests that end before their model is known, beside several


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
    models: Sequence[AnyNeeds]  # at least one; the first is the default
    clock: Clock
    version: str
    books: Books = Books(NoLimits(), NoLedger(), NoPrices(), time.time, "")
    access: Access = Access()
    keeper: Keeper | None = None  # of the ledger in `books`, if it is to be counted
    rate_limits: LimitTable | None = None  # None: those in `books`
    limit_state: SharedState | None = None  # of the store of `books`, where several share one
    routes: RoutesSettings | None = None  # checked against the models; None: each by its names
    on_budgets: Callable[[], Awaitable[None]] | None = None  # after one of the store has changed


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
    serving = Serving(exporter, needs.clock, needs.seed, needs.api_limits)
    table = make_table(needs.routes, [each.facts for each in needs.models])
    served = [serving.of(each) for each in needs.models]
    models = Models(served, table)
    exporter.add_source(models.samples)
    plan = Plan(make_chooser(table, needs.settings.slo_ttft), Models(served, table))
    routing = Routing(plan, needs.clock)
    exporter.add_source(routing.samples)
    condition = Condition(models.views, needs.settings.live_timeout)
    accounts = _accounts(needs, exporter)
    known = {tenant.name: tenant for _, tenant in read_tenants(needs.settings.tenant)}
    known |= {tenant.name: tenant for tenant in needs.access.tenants}
    tokens = _tokens(needs, accounts, known)
    parts = Parts(
        settings=needs.settings,
        api_limits=needs.api_limits,
        clock=needs.clock,
        models=models,
        meter=lambda: models.default.meter if len(models.all) == 1 else serving.meter(NO_MODEL),
        condition=condition,
        pages=Pages(condition, models, exporter, needs.version, needs.api_limits),
        token_pages=TokenPages(models, needs.api_limits),
        fingerprint=f"headway-{needs.version}",
        keys=_key_ring(needs, accounts, tokens),
        admin=_admin(needs, accounts, exporter, known),
        books=needs.books._replace(rules=_rules(needs, exporter)),
        routing=routing,
    )
    reloadable = Reloadable(
        keys=parts.keys,
        known=known,
        limits=needs.rate_limits or needs.books.rules.table,
        models=models,
        routing=routing,
        serving=serving,
        slo_ttft=needs.settings.slo_ttft,
    )
    return Assembled(Gateway(parts), models, exporter, accounts, tokens, reloadable)


def _accounts(needs: GatewayNeeds, exporter: Exporter) -> Accounts | None:
    access = needs.access
    if access.store is None:
        return None
    accounts = Accounts(
        access.store,
        access.call,
        lambda result: exporter.add(KEY_CHECKS, result=result),
        on_budgets=needs.on_budgets,
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
    return AdminRoutes(keys, AdminTable(routes), lambda: exporter.add(ADMIN_REFUSED))


def _rules(needs: GatewayNeeds, exporter: Exporter) -> LimitRules:
    table = needs.rate_limits or needs.books.rules.table
    return needs.books.rules._replace(table=table, on_denied=Denials(exporter, table).count)
