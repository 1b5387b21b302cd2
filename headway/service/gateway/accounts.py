"""The tenants and keys of a store, as one gateway knows them: in memory, followed by polling.

After the first slow check of a key its digest, keyed with a secret of this process, is
remembered, so that the next check costs microseconds. A store that is away changes nothing: the
last known state goes on, and a metric says how old it is.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

from headway.core.base.errors import StartError, StoreUnavailable, Unauthorized
from headway.core.tenancy.account import KeyRecord, TenantRecord, fault_of, read_key
from headway.core.tenancy.account_metrics import ACCOUNTS_AGE
from headway.core.tenancy.book import AccountStore, Book, Snapshot
from headway.core.tenancy.tenant import Principal, Tenant
from headway.service.gateway.auth import UNKNOWN
from headway.service.gateway.slow_checks import SlowChecks
from headway.service.observe.prometheus import Sample

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL_S = 2.0


class Caller(Protocol):
    """Runs what blocks off the event loop, as DatabaseThread.run does."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Its result."""
        ...


async def call_here(call: Callable[[], T], /) -> T:
    """A Caller for stores that do not block."""
    return call()


class _Known:
    """A key, its tenant, and whose it is; made anew at every change of the store."""

    __slots__ = ("key", "principal", "tenant")

    def __init__(self, key: KeyRecord, tenant: TenantRecord | None) -> None:
        self.key = key
        self.tenant = tenant
        shown = Tenant() if tenant is None else tenant.tenant()
        self.principal = Principal(tenant=shown, key_id=key.id)


class Accounts:
    """Tenants and keys of a store; `load` before the first check, `follow` from then on."""

    def __init__(
        self,
        store: AccountStore,
        call: Caller,
        count: Callable[[str], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`count` takes how each slow check ended."""
        self._store = store
        self._call = call
        self._wall_clock = wall_clock
        self._checks = SlowChecks(count)
        self._secret = os.urandom(32)
        self._good: dict[str, bytes] = {}  # digest of the whole key, by its id
        self._known: dict[str, _Known] = {}
        self._tenants: dict[str, TenantRecord] = {}
        self._revision = -1
        self._was_set_up = False
        self._refreshing = asyncio.Lock()
        self._as_of = wall_clock()  # when it was last compared with the store

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever set up in the store."""
        return not self._was_set_up

    def tenant(self, name: str) -> TenantRecord | None:
        """The one of that name."""
        return self._tenants.get(name)

    async def check(self, token: str) -> Principal | None:
        """Whose key it is; None if it has not the form of a key from a store.

        Raises Unauthorized, and QueueFull where too many keys are checked at once.
        """
        presented = read_key(token)
        if presented is None:
            return None
        digest = hashlib.blake2b(token.encode("ascii"), key=self._secret, digest_size=32).digest()
        good = self._good.get(presented.id)
        if good is None or not hmac.compare_digest(good, digest):
            known = self._known.get(presented.id)
            stored = None if known is None else known.key.hash
            if not await self._checks.check(presented, digest, stored):
                raise Unauthorized(UNKNOWN)
            self._good[presented.id] = digest
        return self._principal(presented.id)

    async def read(self, work: Callable[[Book], T]) -> T:
        """`work` on the store itself; raises StoreUnavailable."""
        return await self._call(lambda: self._store.read(work))

    async def edit(self, work: Callable[[Book], T]) -> T:
        """A change of the store, which this gateway knows when the call returns."""
        result = await self._call(lambda: self._store.edit(work))
        try:
            await self.refresh()
        except StoreUnavailable:  # the change is kept, and will be seen at the next poll
            log.warning("accounts_not_refreshed", exc_info=True)
        return result

    async def load(self) -> None:
        """Before the first check; raises StartError."""
        try:
            await self.refresh()
        except StoreUnavailable as error:
            raise StartError(f"tenants and keys cannot be read: {error.message}") from error

    async def refresh(self) -> None:
        """Take over what has changed; raises StoreUnavailable."""
        async with self._refreshing:  # so that what is read later is never older
            known = self._revision
            began = self._wall_clock()
            found = await self._call(lambda: self._store.changed(known))
            if found is not None:
                self._take(found)
            self._as_of = began

    async def follow(self, interval_s: float = POLL_S) -> None:
        """Refresh for ever; to be cancelled."""
        was_away = False
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
                was_away = False
            except StoreUnavailable as error:
                if not was_away:
                    log.warning("accounts_not_refreshed", extra={"reason": error.message})
                was_away = True
            except Exception:  # whatever it is, keys that are revoked later must still be seen
                log.exception("accounts_not_refreshed")

    def samples(self) -> Iterator[Sample]:
        """For the exporter."""
        yield Sample(ACCOUNTS_AGE, max(0.0, self._wall_clock() - self._as_of))

    def close(self) -> None:
        """End its threads."""
        self._checks.close()

    def _principal(self, key_id: str) -> Principal:
        known = self._known.get(key_id)
        if known is None:  # deleted while it was checked
            raise Unauthorized(UNKNOWN)
        fault = fault_of(known.key, known.tenant, self._wall_clock())
        if fault is not None:
            raise Unauthorized(fault)
        return known.principal

    def _take(self, found: Snapshot) -> None:
        self._tenants = {each.name: each for each in found.tenants}
        self._known = {each.id: _Known(each, self._tenants.get(each.tenant)) for each in found.keys}
        self._good = {key: digest for key, digest in self._good.items() if key in self._known}
        self._checks.forget()
        self._revision = found.revision
        # Never back again: a store that was emptied by accident must not let everybody in.
        self._was_set_up = self._was_set_up or found.revision > 0
