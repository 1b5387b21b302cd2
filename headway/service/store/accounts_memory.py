"""Tenants and keys in memory, for a server without a database: gone with its process."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headway.core.tenancy.account import KeyRecord, TenantRecord
from headway.core.tenancy.book import AuditEntry, AuditQuery, Book, Rows, Snapshot, changed_in
from headway.service.store.usage_memory import MemoryUsage

T = TypeVar("T")
MAX_ENTRIES = 10_000  # of the audit log; the oldest go


class MemoryAccounts:
    """An AccountStore whose edits work on a copy, which replaces the book when they succeed."""

    def __init__(self, records: MemoryUsage | None = None) -> None:
        """`records` of requests are exported and erased with the rest of a tenant."""
        self._book = _MemoryBook(records or MemoryUsage())
        self._lock = threading.Lock()

    def read(self, work: Callable[[Book], T]) -> T:
        """On the book as it is; a concurrent edit replaces it, but does not change it."""
        return work(self._book)

    def edit(self, work: Callable[[Book], T]) -> T:
        """Alone; all or nothing."""
        with self._lock:
            copy = self._book.copy()
            result = work(copy)
            self._book = copy
            return result

    def changed(self, since: int) -> Snapshot | None:
        """All tenants and keys, unless that is their revision."""
        return changed_in(self._book, since)


class _MemoryBook:
    def __init__(self, records: MemoryUsage) -> None:
        self._records = records  # which is no copy: an erasure is not taken back
        self._revision = 0
        self._tenants: dict[str, TenantRecord] = {}
        self._keys: dict[str, KeyRecord] = {}
        self._audit: list[AuditEntry] = []
        self._num_noted = 0

    def copy(self) -> "_MemoryBook":
        """The next revision, to be changed."""
        copy = _MemoryBook(self._records)
        copy._revision = self._revision + 1
        copy._tenants = dict(self._tenants)
        copy._keys = dict(self._keys)
        copy._audit = self._audit[:]
        copy._num_noted = self._num_noted
        return copy

    def revision(self) -> int:
        return self._revision

    def tenant(self, name: str) -> TenantRecord | None:
        return self._tenants.get(name)

    def tenants(self) -> Sequence[TenantRecord]:
        return sorted(self._tenants.values(), key=lambda each: each.name)

    def put_tenant(self, record: TenantRecord) -> None:
        self._tenants[record.name] = record

    def drop_tenant(self, name: str) -> None:
        self._tenants.pop(name, None)
        self._keys = {key: each for key, each in self._keys.items() if each.tenant != name}

    def key(self, key_id: str) -> KeyRecord | None:
        return self._keys.get(key_id)

    def keys(self, tenant: str | None = None) -> Sequence[KeyRecord]:
        found = [each for each in self._keys.values() if tenant in (None, each.tenant)]
        return sorted(found, key=lambda each: (each.created, each.id))

    def put_key(self, record: KeyRecord) -> None:
        assert record.tenant in self._tenants, record.tenant
        self._keys[record.id] = record

    def note(self, entry: AuditEntry) -> None:
        self._num_noted += 1
        self._audit.append(msgspec.structs.replace(entry, id=self._num_noted))
        del self._audit[:-MAX_ENTRIES]

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        found = [
            entry
            for entry in reversed(self._audit)
            if query.tenant in (None, entry.tenant)
            and (query.before is None or entry.id < query.before)
        ]
        return found[: query.limit]

    def export(self, tenant: str) -> Rows:
        audit = [entry for entry in self._audit if entry.tenant == tenant]
        keys = [
            {name: value for name, value in _row(each).items() if name != "hash"}
            for each in self.keys(tenant)
        ]
        tenants = [_row(each) for each in self.tenants() if each.name == tenant]
        return {
            "requests": [_row(each) for each in self._records.of_tenant(tenant)],
            "audit": [_row(each) for each in audit],
            "tenant_keys": keys,
            "tenants": tenants,
        }

    def erase(self, tenant: str) -> dict[str, int]:
        rows = {name: len(found) for name, found in self.export(tenant).items()}
        self._audit = [entry for entry in self._audit if entry.tenant != tenant]
        self.drop_tenant(tenant)
        self._records.erase(tenant)
        return rows


def _row(record: msgspec.Struct) -> dict[str, object]:
    return {
        name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(record).items()
    }
