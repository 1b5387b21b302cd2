"""What outlives requests, opened at start: the database, and the accounts in it or in memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headway.app.sections import keys_of, with_line
from headway.app.settings import Settings
from headway.core.base.errors import InvalidSetting
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.book import AccountStore
from headway.service.gateway.accounts import call_here
from headway.service.gateway.assemble import Access
from headway.service.gateway.auth import FindTenant, TokenSource
from headway.service.gateway.journey import Pricing
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.jwt_settings import check as check_jwt
from headway.service.gateway.ledger import Keeper, MemoryLedger, open_ledger
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.ledger_settings import check as check_ledger
from headway.service.store.ledger_settings import spool_of
from headway.service.store.settings import url_of

if TYPE_CHECKING:
    from headway.service.store.database import Database, DatabaseThread


class Stores(NamedTuple):
    """To be closed at the end; all None where nothing is configured."""

    database: "Database | None" = None
    thread: "DatabaseThread | None" = None  # for calls of /admin and the polling of accounts
    accounts: AccountStore | None = None

    def close(self) -> None:
        """Wait for what was begun; blocks."""
        if self.thread is not None:
            self.thread.close()
        if self.database is not None:
            self.database.close()


def open_stores(settings: Settings) -> Stores:
    """Open what is configured; raises StartError. A server without a database imports none."""
    url = url_of(settings.store)
    if url is None:
        return Stores(accounts=MemoryAccounts() if settings.gateway.admin_key else None)
    # Here and not above: the libraries are of no use to a server without a database.
    from headway.service.store.accounts_sql import SqlAccounts
    from headway.service.store.database import DatabaseThread, open_database

    database = open_database(url)
    return Stores(database, DatabaseThread(database), SqlAccounts(database))


def keeper_of(
    settings: Settings,
    stores: Stores,
    name: str,
    pricing: Pricing,
    on_lost: Callable[[RequestRecord], None] = lambda record: None,
) -> Keeper | None:
    """The ledger: in the database, else in memory where /admin could ask it; raises StartError."""
    check_ledger(settings.ledger)
    if stores.database is None:
        return MemoryLedger() if settings.gateway.admin_key else None
    # Here and not above: as for the database.
    from headway.service.store.usage import SqlUsage

    root = spool_of(settings.store)
    return open_ledger(settings.ledger, SqlUsage(stores.database), root, name, pricing, on_lost)


def access_of(settings: Settings, stores: Stores, keeper: Keeper | None) -> Access:
    """Who may use the gateway; raises InvalidSetting."""
    jwt = settings.jwt
    if jwt is not None:
        check_jwt(jwt)
    return Access(
        store=stores.accounts,
        call=call_here if stores.thread is None else stores.thread.run,
        tokens=None if jwt is None else lambda find: _tokens(jwt, find),
        admin_keys=settings.gateway.admin_key,
        admin_routes=() if keeper is None else UsagePages(keeper).routes(),
        keys=tuple(with_line(settings.file, lambda: keys_of(settings.tenants))),
        tenants=tuple(entry.tenant() for entry in settings.tenants),
    )


def _tokens(settings: JwtSettings, find: FindTenant) -> TokenSource:
    # Here and not above: PyJWT is an extra.
    try:
        from headway.service.gateway.jwt_tokens import JwtTokens
    except ImportError:
        raise InvalidSetting(
            "jwt", "needs a library that is not installed; pip install 'headway[jwt]'"
        ) from None
    return JwtTokens(settings, find)
