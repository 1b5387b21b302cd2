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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

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


class _State(NamedTuple):
    """All of it at one revision of the store."""

    revision: int  # -1: nothing was read yet
    tenants: Mapping[str, TenantRecord]
    known: Mapping[str, _Known]  # by the key's id

    @property
    def budgets(self) -> frozenset[str]:
        """Names of the tenants that have one."""
        return frozenset(
            each.name for each in self.tenants.values() if each.limits.monthly_budget is not None
        )


class Accounts:
    """Tenants and keys of a store; `load` before the first check, `follow` from then on."""

    def __init__(
        self,
        store: AccountStore,
        call: Caller,
        count: Callable[[str], None],
        wall_clock: Callable[[], float] = time.time,
        on_budgets: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`count` takes how each slow check ended; `on_budgets` follows a change of a budget."""
        self._store = store
        self._call = call
        self._wall_clock = wall_clock
        self._checks = SlowChecks(count)
        self._secret = os.urandom(32)
        self._good: dict[str, bytes] = {}  # digest of the whole key, by its id
        self._state = _State(-1, {}, {})
        self._was_set_up = False
        self._on_budgets = on_budgets
        self._refreshing = asyncio.Lock()
        self._as_of = wall_clock()  # when it was last compared with the store

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever set up in the store."""
        return not self._was_set_up

    def tenant(self, name: str) -> TenantRecord | None:
        """The one of that name."""
        return self._state.tenants.get(name)

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
            known = self._state.known.get(presented.id)
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
            before = self._state
            known = before.revision
            began = self._wall_clock()
            found = await self._call(lambda: self._store.changed(known))
            if found is not None:
                self._take(found)
            self._as_of = began
        if found is None or known < 0 or self._on_budgets is None:
            return
        if self._state.budgets - before.budgets:
            await self._on_budgets()

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
        known = self._state.known.get(key_id)
        if known is None:  # deleted while it was checked
            raise Unauthorized(UNKNOWN)
        fault = fault_of(known.key, known.tenant, self._wall_clock())
        if fault is not None:
            raise Unauthorized(fault)
        return known.principal

    def _take(self, found: Snapshot) -> None:
        tenants = {each.name: each for each in found.tenants}
        known = {each.id: _Known(each, tenants.get(each.tenant)) for each in found.keys}
        self._state = _State(found.revision, tenants, known)
        self._good = {key: digest for key, digest in self._good.items() if key in known}
        self._checks.forget()
        # Never back again: a store that was emptied by accident must not let everybody in.
        self._was_set_up = self._was_set_up or found.revision > 0
