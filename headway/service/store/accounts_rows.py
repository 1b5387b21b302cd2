"""Rows of the tables of tenants and keys as records. Imports nothing of a database."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.core.tenancy.account import KeyRecord, TenantRecord
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import class_named


def tenant_of(row: Mapping[Any, Any]) -> TenantRecord:
    """A row of `tenants`, by the names of its columns."""
    return TenantRecord(
        name=row["name"],
        slo_class=class_named(row["slo_class"]),
        weight=row["weight"],
        limits=msgspec.json.decode(row["limits"], type=Limits),
        models=msgspec.json.decode(row["models"], type=tuple[str, ...]),
        may_degrade=bool(row["may_degrade"]),
        is_disabled=bool(row["is_disabled"]),
        created=row["created"],
        changed=row["changed"],
    )


def key_of(row: Mapping[Any, Any]) -> KeyRecord:
    """A row of `tenant_keys`."""
    return KeyRecord(**{str(name): value for name, value in row.items()})
