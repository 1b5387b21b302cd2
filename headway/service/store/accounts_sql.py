"""Tenants, keys and the audit log in the SQL database."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from sqlalchemy import Connection, Table, delete, insert, select, update

from headway.core.tenancy.account import KeyRecord, TenantRecord
from headway.core.tenancy.book import AuditEntry, AuditQuery, Book, Rows, Snapshot, changed_in
from headway.service.store import tenant_data
from headway.service.store.accounts_rows import key_of, tenant_of
from headway.service.store.accounts_tables import AUDIT, KEYS, STATE, TENANTS
from headway.service.store.database import Database

T = TypeVar("T")


class SqlAccounts:
    """An AccountStore in a database that others may use at the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, work: Callable[[Book], T]) -> T:
        """On one state of the database."""
        return self._database.read(lambda connection: work(_SqlBook(connection)))

    def edit(self, work: Callable[[Book], T]) -> T:
        """Alone, over all processes: the row of the revision is changed, and so locked, first."""

        def edited(connection: Connection) -> T:
            connection.execute(update(STATE).values(revision=STATE.c.revision + 1))
            return work(_SqlBook(connection))

        return self._database.write(edited)

    def changed(self, since: int) -> Snapshot | None:
        """All tenants and keys, unless that is their revision."""
        return self.read(lambda book: changed_in(book, since))


class _SqlBook:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def revision(self) -> int:
        return int(self._connection.execute(select(STATE.c.revision)).scalar_one())

    def tenant(self, name: str) -> TenantRecord | None:
        row = self._connection.execute(select(TENANTS).where(TENANTS.c.name == name)).first()
        return None if row is None else tenant_of(row._mapping)

    def tenants(self) -> Sequence[TenantRecord]:
        rows = self._connection.execute(select(TENANTS)).mappings()
        # Sorted here: what order text has is the database's own choice.
        return sorted((tenant_of(row) for row in rows), key=lambda each: each.name)

    def put_tenant(self, record: TenantRecord) -> None:
        self._put(
            TENANTS,
            "name",
            {
                "name": record.name,
                "slo_class": record.slo_class.name.lower(),
                "weight": record.weight,
                "limits": msgspec.json.encode(record.limits).decode(),
                "models": msgspec.json.encode(record.models).decode(),
                "may_degrade": record.may_degrade,
                "is_disabled": record.is_disabled,
                "created": record.created,
                "changed": record.changed,
            },
        )

    def drop_tenant(self, name: str) -> None:
        self._connection.execute(delete(KEYS).where(KEYS.c.tenant == name))
        self._connection.execute(delete(TENANTS).where(TENANTS.c.name == name))

    def key(self, key_id: str) -> KeyRecord | None:
        row = self._connection.execute(select(KEYS).where(KEYS.c.id == key_id)).first()
        return None if row is None else key_of(row._mapping)

    def keys(self, tenant: str | None = None) -> Sequence[KeyRecord]:
        query = select(KEYS) if tenant is None else select(KEYS).where(KEYS.c.tenant == tenant)
        found = [key_of(row) for row in self._connection.execute(query).mappings()]
        return sorted(found, key=lambda each: (each.created, each.id))

    def put_key(self, record: KeyRecord) -> None:
        self._put(KEYS, "id", msgspec.structs.asdict(record))

    def note(self, entry: AuditEntry) -> None:
        row = msgspec.structs.asdict(entry)
        del row["id"]
        self._connection.execute(insert(AUDIT).values(row))

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        wanted = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(query.limit)
        if query.tenant is not None:
            wanted = wanted.where(AUDIT.c.tenant == query.tenant)
        if query.before is not None:
            wanted = wanted.where(AUDIT.c.id < query.before)
        rows = self._connection.execute(wanted).mappings()
        return [AuditEntry(**{str(name): value for name, value in row.items()}) for row in rows]

    def export(self, tenant: str) -> Rows:
        return tenant_data.export(self._connection, tenant)

    def erase(self, tenant: str) -> dict[str, int]:
        return tenant_data.erase(self._connection, tenant)

    def _put(self, table: Table, key: str, row: dict[str, object]) -> None:
        """Edits are alone, so that nobody puts it in between the two statements."""
        known = update(table).where(table.c[key] == row[key]).values(row)
        if self._connection.execute(known).rowcount == 0:
            self._connection.execute(insert(table).values(row))
