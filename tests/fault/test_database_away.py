"""PostgreSQL is killed under a gateway: keys go on, changes wait, and all is well afterwards."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from headway.core.base.errors import StoreUnavailable, Unauthorized
from headway.core.tenancy import administer
from headway.core.tenancy.account import KEY_RANDOM_BYTES, NewKey, new_key
from headway.core.tenancy.administer import Author, TenantChange
from headway.service.gateway.accounts import Accounts
from headway.service.store.accounts_sql import SqlAccounts
from headway.service.store.database import DatabaseThread, open_database
from tests.services.servers import Postgres, postgres

ME = Author("test", 1000.0)
DEADLINE_S = 90.0


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL of this test's own."""
    with postgres() as here:
        yield here


def made(number: int) -> NewKey:
    """A key."""
    return new_key(bytes([number]) * KEY_RANDOM_BYTES, log_n=4)


@pytest.mark.spec("M13")
def test_keys_go_on_while_the_database_is_dead_and_changes_come_with_its_return(
    server: Postgres,
) -> None:
    database = open_database(server.fresh("headway"))
    thread = DatabaseThread(database)

    async def scenario() -> None:
        accounts = Accounts(SqlAccounts(database), thread.run, lambda _: None)
        old, new = made(1), made(2)
        await accounts.load()
        await accounts.edit(lambda book: administer.create_tenant(book, "acme", TenantChange(), ME))
        await accounts.edit(lambda book: administer.add_key(book, "acme", old, "", None, ME))
        following = asyncio.ensure_future(accounts.follow(0.05))
        assert await accounts.check(old.text) is not None

        await asyncio.to_thread(server.stop, signal.SIGQUIT)  # at once, without a checkpoint
        with pytest.raises(StoreUnavailable):
            await accounts.edit(lambda book: administer.revoke_key(book, old.id, ME))
        with pytest.raises(StoreUnavailable):
            await accounts.read(lambda book: book.tenants())
        assert await accounts.check(old.text) is not None
        assert not following.done()

        await asyncio.to_thread(server.start)
        other = SqlAccounts(database)  # another gateway's or the command's
        await asyncio.to_thread(
            other.edit, lambda book: administer.add_key(book, "acme", new, "", None, ME)
        )
        async with asyncio.timeout(DEADLINE_S):
            while not await is_good(accounts, new):
                await asyncio.sleep(0.02)
        following.cancel()
        accounts.close()

    async def is_good(accounts: Accounts, key: NewKey) -> bool:
        try:
            return await accounts.check(key.text) is not None
        except Unauthorized:
            return False

    asyncio.run(scenario())
    thread.close()
    database.close()
