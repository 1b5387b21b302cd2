"""Every table that holds something about a tenant: what `export` and `erase` go through.

A table with a column `tenant` that is missing here fails a test. Whoever adds a table adds its
module's `TABLE` (or tables) to `TENANT_TABLES`, below, and its migration as
`migrations/versions/rNNNN_what.py`.
"""

from typing import NamedTuple

from sqlalchemy import Connection, Table, delete, select

from headway.service.store.accounts_tables import AUDIT, KEYS, TENANTS
from headway.service.store.usage_tables import REQUESTS

Row = dict[str, object]


class TenantTable(NamedTuple):
    """One table, and how a tenant's rows are told in it."""

    table: Table
    column: str = "tenant"
    kept_in: frozenset[str] = frozenset()  # columns that an export leaves out


# In the order in which rows can be deleted: what refers to a tenant goes before the tenant.
TENANT_TABLES: tuple[TenantTable, ...] = (
    TenantTable(REQUESTS),
    TenantTable(AUDIT),
    TenantTable(KEYS, kept_in=frozenset({"hash"})),
    TenantTable(TENANTS, "name"),
)


def export(connection: Connection, tenant: str) -> dict[str, list[Row]]:
    """All rows about the tenant, by table; without the hashes of its keys."""
    return {each.table.name: _rows(connection, each, tenant) for each in TENANT_TABLES}


def erase(connection: Connection, tenant: str) -> dict[str, int]:
    """Delete all rows about the tenant; how many, by table."""
    return {
        each.table.name: connection.execute(
            delete(each.table).where(each.table.c[each.column] == tenant)
        ).rowcount
        for each in TENANT_TABLES
    }


def _rows(connection: Connection, each: TenantTable, tenant: str) -> list[Row]:
    columns = [column for column in each.table.columns if column.name not in each.kept_in]
    query = (
        select(*columns)
        .where(each.table.c[each.column] == tenant)
        .order_by(*each.table.primary_key.columns)
    )
    return [
        {str(name): value for name, value in row.items()}
        for row in connection.execute(query).mappings()
    ]
