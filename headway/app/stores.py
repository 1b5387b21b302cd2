"""What outlives requests, opened at start: the database, and the accounts in it or in memory."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headway.app.sections import keys_of, with_line
from headway.app.settings import Settings
from headway.core.base.errors import InvalidSetting, StartError
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.book import AccountStore
from headway.service.gateway.accounts import Caller, call_here
from headway.service.gateway.assemble import Access
from headway.service.gateway.auth import FindTenant, TokenSource
from headway.service.gateway.journey import Pricing
from headway.service.gateway.jwt_settings import JwtSettings
from headway.service.gateway.jwt_settings import check as check_jwt
from headway.service.gateway.ledger import Keeper, MemoryLedger, open_ledger
from headway.service.gateway.usage_pages import UsagePages
from headway.service.store.accounts_memory import MemoryAccounts
from headway.service.store.default_place import unfit
from headway.service.store.drain import Records
from headway.service.store.embedded import EmbeddedAccounts, EmbeddedFile, EmbeddedUsage
from headway.service.store.ledger_settings import LedgerSettings, spool_of
from headway.service.store.ledger_settings import check as check_ledger
from headway.service.store.settings import FILE, default_folder, path_of, url_of
from headway.service.store.usage_memory import MemoryUsage

if TYPE_CHECKING:
    from headway.service.store.database import Database, DatabaseThread


log = logging.getLogger(__name__)

DEFAULT_DAYS = 90  # that records stay where nobody chose a place for them


class Stores(NamedTuple):
    """To be closed at the end; all None where nothing is kept."""

    database: "Database | None" = None
    thread: "DatabaseThread | None" = None  # for calls of /admin and the polling of accounts
    embedded: EmbeddedFile | None = None  # an SQLite file, in place of both
    accounts: AccountStore | None = None
    recent: MemoryUsage | None = None  # records, where they are kept nowhere else

    def close(self) -> None:
        """Wait for what was begun; blocks."""
        if self.thread is not None:
            self.thread.close()
        if self.database is not None:
            self.database.close()
        if self.embedded is not None:
            self.embedded.close()


def open_stores(settings: Settings) -> Stores:
    """Open what is configured; raises StartError.

    A server imports SQLAlchemy for PostgreSQL and for /admin, and does so here; with prices, when
    it adds up at its start what was spent. While it serves it is never imported.
    """
    if settings.store.is_default:
        folder = default_folder()
        reason = unfit(folder)
        if reason is None:
            return _embedded(EmbeddedFile(folder / FILE), settings)
        _nothing_is_kept(reason)
    url = None if settings.store.is_default else url_of(settings.store)
    if url is None:
        if not settings.gateway.admin_key:
            return Stores()
        recent = MemoryUsage()
        return Stores(accounts=MemoryAccounts(recent), recent=recent)
    path = path_of(url)
    if path is None:
        return open_database_of(url)
    stores = _embedded(EmbeddedFile(path), settings)
    assert stores.embedded is not None
    stores.embedded.prepare()
    return stores


def _embedded(file: EmbeddedFile, settings: Settings) -> Stores:
    if settings.gateway.admin_key:  # it will be asked
        file.load()
    return Stores(embedded=file, accounts=EmbeddedAccounts(file))


def open_database_of(url: str) -> Stores:
    """That database now; raises StartError."""
    # Here and not above: the libraries are of no use to a server without a database.
    from headway.service.store.accounts_sql import SqlAccounts
    from headway.service.store.database import DatabaseThread, open_database

    database = open_database(url)
    thread = DatabaseThread(database)
    return Stores(database=database, thread=thread, accounts=SqlAccounts(database))


def keeper_of(
    settings: Settings,
    stores: Stores,
    name: str,
    pricing: Pricing,
    on_lost: Callable[[RequestRecord], None] = lambda record: None,
) -> Keeper | None:
    """The ledger: in the database, else in memory where /admin could ask it; raises StartError."""
    check_ledger(settings.ledger)
    root = spool_of(settings.store)
    if stores.database is not None:
        # Here and not above: as for the database.
        from headway.service.store.usage import SqlUsage

        store: Records = SqlUsage(stores.database)
        return open_ledger(settings.ledger, store, root, name, pricing, on_lost)
    if stores.embedded is not None:
        store = EmbeddedUsage(stores.embedded)
        if not settings.store.is_default:
            return open_ledger(settings.ledger, store, root, name, pricing, on_lost)
        try:
            return open_ledger(_bounded(settings.ledger), store, root, name, pricing, on_lost)
        except StartError as error:  # as by a full disk, which nobody asked us to write to
            _nothing_is_kept(error.message)
    recent = stores.recent or (MemoryUsage() if settings.gateway.admin_key else None)
    return None if recent is None else MemoryLedger(recent)


def _bounded(settings: LedgerSettings) -> LedgerSettings:
    """Records do not pile up for ever where nobody chose that they be kept."""
    days = settings.retention_days or DEFAULT_DAYS
    return msgspec.structs.replace(settings, retention_days=days)


def _nothing_is_kept(reason: str) -> None:
    log.warning(
        "nothing_is_kept",
        extra={
            "folder": str(default_folder()),
            "reason": reason,
            "hint": "give --data-dir a folder, or none if that is meant",
        },
    )


def access_of(settings: Settings, stores: Stores, keeper: Keeper | None) -> Access:
    """Who may use the gateway; raises InvalidSetting."""
    jwt = settings.jwt
    if jwt is not None:
        check_jwt(jwt)
    return Access(
        store=stores.accounts,
        call=_caller(stores),
        tokens=None if jwt is None else lambda find: tokens_of(jwt, find),
        admin_keys=settings.gateway.admin_key,
        admin_routes=() if keeper is None else UsagePages(keeper).routes(),
        keys=tuple(with_line(settings.file, lambda: keys_of(settings.tenants))),
        tenants=tuple(entry.tenant() for entry in settings.tenants),
    )


def _caller(stores: Stores) -> Caller:
    """What runs the store off the event loop, where it blocks."""
    if stores.thread is not None:
        return stores.thread.run
    return call_here if stores.embedded is None else asyncio.to_thread


def tokens_of(settings: JwtSettings, find: FindTenant) -> TokenSource:
    """What checks tokens of an identity provider; raises InvalidSetting."""
    # Here and not above: PyJWT is an extra.
    try:
        from headway.service.gateway.jwt_tokens import JwtTokens
    except ImportError:
        raise InvalidSetting(
            "jwt", "needs a library that is not installed; pip install 'headway[jwt]'"
        ) from None
    return JwtTokens(settings, find)
