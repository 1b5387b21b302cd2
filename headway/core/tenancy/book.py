"""The seam to where tenants and keys are kept, and what is noted of every change."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from headway.core.tenancy.account import KeyRecord, TenantRecord

T = TypeVar("T")
Rows = dict[str, list[dict[str, object]]]

MAX_AUDIT = 1000  # entries of one answer


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what; holds no secret and no hash."""

    id: int = 0  # grows with every entry; given when it is noted
    at: float
    who: str  # "admin:<first letters of the admin key's digest>", "cli:<user>"
    action: str  # "tenant.create", "key.revoke", ...
    tenant: str
    subject: str  # the key's id, or the tenant's name
    before: str = ""  # JSON; "" for nothing
    after: str = ""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries, newest first."""

    tenant: str | None = None
    before: int | None = None  # only those with a smaller id
    limit: int = 100


class Book(Protocol):
    """Tenants, keys and the audit log inside one transaction."""

    def revision(self) -> int:
        """Grows with every change, and only then; 0: nothing was ever set up."""
        ...

    def tenant(self, name: str) -> TenantRecord | None:
        """The one of that name."""
        ...

    def tenants(self) -> Sequence[TenantRecord]:
        """All, by name."""
        ...

    def put_tenant(self, record: TenantRecord) -> None:
        """Keep it, instead of the one of that name."""
        ...

    def drop_tenant(self, name: str) -> None:
        """Remove it and its keys."""
        ...

    def key(self, key_id: str) -> KeyRecord | None:
        """The one of that id."""
        ...

    def keys(self, tenant: str | None = None) -> Sequence[KeyRecord]:
        """All, or one tenant's, oldest first."""
        ...

    def put_key(self, record: KeyRecord) -> None:
        """Keep it, instead of the one of that id; its tenant is there."""
        ...

    def note(self, entry: AuditEntry) -> None:
        """Add to the audit log."""
        ...

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Entries of the audit log, newest first."""
        ...

    def export(self, tenant: str) -> Rows:
        """All that is kept about a tenant, by table, without secrets and hashes."""
        ...

    def erase(self, tenant: str) -> dict[str, int]:
        """Remove all of that; how many rows, by table."""
        ...


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants and keys at one revision."""

    revision: int = 0
    tenants: tuple[TenantRecord, ...] = ()
    keys: tuple[KeyRecord, ...] = ()


class AccountStore(Protocol):
    """Where a book is kept. Blocks; usable from any thread. Raises StoreUnavailable."""

    def read(self, work: Callable[[Book], T]) -> T:
        """Run `work`, which changes nothing, on one consistent state."""
        ...

    def edit(self, work: Callable[[Book], T]) -> T:
        """Run `work` alone: all that it does is kept, under a new revision, or it raises and
        nothing is.
        """
        ...

    def changed(self, since: int) -> Snapshot | None:
        """All tenants and keys; None if their revision is still that one.

        What a gateway asks for every few seconds, and does not want to wait for.
        """
        ...


def snapshot(book: Book) -> Snapshot:
    """The book's state."""
    return Snapshot(
        revision=book.revision(), tenants=tuple(book.tenants()), keys=tuple(book.keys())
    )


def changed_in(book: Book, since: int) -> Snapshot | None:
    """The book's state, unless its revision is that one."""
    return None if book.revision() == since else snapshot(book)
