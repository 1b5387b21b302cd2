"""Bodies of /admin, as they are read and written; the views of tenants and keys are core's."""

from typing import Any

import msgspec

from headway.core.tenancy.administer import KeyView, TenantChange, TenantView


class NewTenantBody(TenantChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to make."""

    name: str


class NewKeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make."""

    label: str = ""
    expires_in_s: float | None = None  # from now; null: it does not expire


class RotateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old key goes on beside the new one."""

    overlap_s: float = 86400.0


class EraseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tenant's name again, since nothing brings the rows back."""

    confirm: str


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants."""

    object: str = "list"
    data: list[TenantView]


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys without their secrets."""

    object: str = "list"
    data: list[KeyView]


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log."""

    id: int
    at: float
    who: str
    action: str
    tenant: str
    subject: str
    before: msgspec.Raw | None  # the JSON that was noted
    after: msgspec.Raw | None


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, newest first."""

    object: str = "list"
    data: list[AuditView]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that is gone."""

    name: str
    deleted: bool = True


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    name: str
    rows: dict[str, int]  # by table


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept about a tenant."""

    name: str
    tables: dict[str, list[dict[str, Any]]]
