"""What an operator may do with tenants and keys; every change is noted in the audit log."""

from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.base.errors import Conflict, InvalidRequest, NotFound
from headway.core.tenancy.account import (
    KeyRecord,
    NewKey,
    TenantRecord,
    checked_label,
    checked_tenant,
    id_in,
)
from headway.core.tenancy.book import AuditEntry, Book, Rows
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import NAMES, SloClass

ERASED = "tenant.erase"  # the note of it, whose subject is the tenant's name
MAX_OVERLAP_S = 90 * 86400.0  # for which a rotated key goes on
MAX_SHOWN = 80  # characters of a name that an error repeats
MAX_LIFE_S = 36500 * 86400.0  # of a key that expires


class Author(NamedTuple):
    """Who asks for a change, and when."""

    who: str
    now: float  # seconds since 1970


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it is shown."""

    name: str
    slo_class: str = msgspec.field(name="class")
    weight: float
    limits: Limits
    models: tuple[str, ...]
    may_degrade: bool
    disabled: bool
    created: int
    changed: int


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is shown: without its secret and its hash."""

    id: str
    tenant: str
    label: str
    created: int
    expires: int | None
    revoked: int | None
    replaced_by: str | None
    key: str | UnsetType = UNSET  # whole, once: in the answer that made it


class TenantChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a tenant; the rest stays. Limits that are given replace one by one."""

    slo_class: str | UnsetType = msgspec.field(name="class", default=UNSET)
    weight: float | UnsetType = UNSET
    limits: dict[str, int | None] | UnsetType = UNSET
    models: tuple[str, ...] | UnsetType = UNSET
    may_degrade: bool | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


def view_tenant(record: TenantRecord) -> TenantView:
    """As it is shown."""
    return TenantView(
        name=record.name,
        slo_class=record.slo_class.name.lower(),
        weight=record.weight,
        limits=record.limits,
        models=record.models,
        may_degrade=record.may_degrade,
        disabled=record.is_disabled,
        created=int(record.created),
        changed=int(record.changed),
    )


def view_key(record: KeyRecord, text: str | UnsetType = UNSET) -> KeyView:
    """As it is shown; `text` only in the answer to the call that made it."""
    return KeyView(
        id=record.id,
        tenant=record.tenant,
        label=record.label,
        created=int(record.created),
        expires=None if record.expires is None else int(record.expires),
        revoked=None if record.revoked is None else int(record.revoked),
        replaced_by=record.replaced_by or None,
        key=text,
    )


def create_tenant(book: Book, name: str, change: TenantChange, author: Author) -> TenantRecord:
    """A new tenant; raises InvalidRequest, Conflict."""
    fresh = TenantRecord(name=name, created=author.now, changed=author.now)
    record = checked_tenant(_changed(fresh, change))
    if book.tenant(name) is not None:
        raise Conflict(f"There is a tenant {name!r} already.", param="name")
    book.put_tenant(record)
    _note(book, author, "tenant.create", (name, name), None, view_tenant(record))
    return record


def change_tenant(book: Book, name: str, change: TenantChange, author: Author) -> TenantRecord:
    """The tenant as it is from now on; raises InvalidRequest, NotFound."""
    old = find_tenant(book, name)
    record = checked_tenant(
        msgspec.structs.replace(_changed(old, change), changed=max(author.now, old.changed))
    )
    book.put_tenant(record)
    _note(book, author, "tenant.change", (name, name), view_tenant(old), view_tenant(record))
    return record


def delete_tenant(book: Book, name: str, author: Author) -> None:
    """Remove it and its keys, but not what it did (see `erase_tenant`); raises NotFound."""
    old = find_tenant(book, name)
    book.drop_tenant(name)
    _note(book, author, "tenant.delete", (name, name), view_tenant(old), None)


def erase_tenant(book: Book, name: str, author: Author) -> dict[str, int]:
    """Remove all that is kept about it, also when it was deleted; rows by table.

    One note is left, that and by whom it was erased. Raises NotFound where nothing is kept.
    """
    rows = book.erase(name)
    if not any(rows.values()):
        raise NotFound(f"Nothing is kept about a tenant {name!r}.")
    # Of no tenant: it stays when the name is used and erased again.
    _note(book, author, ERASED, ("", name), None, rows)
    return rows


def export_tenant(book: Book, name: str, author: Author) -> Rows:
    """All that is kept about it, also when it was deleted, without secrets; that is noted too.

    Raises NotFound where nothing is kept.
    """
    rows = book.export(name)
    if not any(rows.values()):
        raise NotFound(f"Nothing is kept about a tenant {name!r}.")
    _note(book, author, "tenant.export", (name, name), None, None)
    return rows


def add_key(
    book: Book, tenant: str, made: NewKey, label: str, expires: float | None, author: Author
) -> KeyRecord:
    """Keep a new key of that tenant; raises InvalidRequest, NotFound."""
    find_tenant(book, tenant)
    if expires is not None and not author.now < expires <= author.now + MAX_LIFE_S:
        raise InvalidRequest(
            f"A new key lives for more than 0 and at most {MAX_LIFE_S:.0f} seconds (100 years), or "
            f"without a time for ever; got {expires - author.now:g}.",
            param="expires_in_s",
        )
    record = KeyRecord(
        id=made.id,
        tenant=tenant,
        hash=made.hash,
        label=checked_label(label),
        created=author.now,
        expires=expires,
    )
    book.put_key(record)
    _note(book, author, "key.create", (tenant, record.id), None, view_key(record))
    return record


def rotate_key(
    book: Book, key_id: str, made: NewKey, overlap_s: float, author: Author
) -> KeyRecord:
    """A new key in place of that one, which goes on for `overlap_s`; the new one's record.

    It has the old one's label and lifetime. Raises NotFound, Conflict for a key that is not good
    any more or was rotated before, InvalidRequest.
    """
    old = find_key(book, key_id)
    if not 0 <= overlap_s <= MAX_OVERLAP_S:
        raise InvalidRequest(
            f"overlap_s is 0 to {MAX_OVERLAP_S:.0f} seconds, got {overlap_s:g}.", param="overlap_s"
        )
    if old.replaced_by:
        raise Conflict(f"Key {key_id} was rotated to {old.replaced_by}; rotate that one.")
    if old.revoked is not None or (old.expires is not None and old.expires <= author.now):
        raise Conflict(f"Key {key_id} is not good any more; create a new one.")
    end = author.now + overlap_s
    ending = msgspec.structs.replace(
        old,
        expires=end if old.expires is None else min(end, old.expires),
        replaced_by=made.id,
    )
    lifetime = None if old.expires is None else min(old.expires - old.created, MAX_LIFE_S)
    record = KeyRecord(
        id=made.id,
        tenant=old.tenant,
        hash=made.hash,
        label=old.label,
        created=author.now,
        expires=None if lifetime is None else author.now + lifetime,
    )
    book.put_key(record)
    book.put_key(ending)
    _note(book, author, "key.rotate", (old.tenant, key_id), view_key(old), view_key(ending))
    _note(book, author, "key.create", (old.tenant, record.id), None, view_key(record))
    return record


def revoke_key(book: Book, key_id: str, author: Author) -> KeyRecord:
    """It is good for nothing from now on; doing it again changes nothing. Raises NotFound."""
    old = find_key(book, key_id)
    if old.revoked is not None:
        return old
    record = msgspec.structs.replace(old, revoked=author.now)
    book.put_key(record)
    _note(book, author, "key.revoke", (old.tenant, key_id), view_key(old), view_key(record))
    return record


def find_tenant(book: Book, name: str) -> TenantRecord:
    """The tenant of that name; raises NotFound."""
    found = book.tenant(name)
    if found is None:
        raise NotFound(f"There is no tenant {name[:MAX_SHOWN]!r}.")
    return found


def find_key(book: Book, key_id: str) -> KeyRecord:
    """The key of that id; raises NotFound, which never repeats a secret."""
    found = book.key(key_id)
    if found is None:
        given = id_in(key_id)
        if given is not None:  # a slip that would put the secret into terminals and logs
            raise NotFound(f"That is more than the id of a key: give {given!r} alone.")
        raise NotFound(f"There is no key with the id {key_id[:MAX_SHOWN]!r}.")
    return found


def _changed(record: TenantRecord, change: TenantChange) -> TenantRecord:
    given = {
        "slo_class": UNSET if change.slo_class is UNSET else _class(change.slo_class),
        "weight": change.weight,
        "limits": UNSET if change.limits is UNSET else _limits(record.limits, change.limits),
        "models": change.models,
        "may_degrade": change.may_degrade,
        "is_disabled": change.disabled,
    }
    changes = {name: value for name, value in given.items() if value is not UNSET}
    return msgspec.structs.replace(record, **changes)


def _class(name: str) -> SloClass:
    if name not in NAMES:
        raise InvalidRequest(
            f"class is one of {', '.join(NAMES)}; got {name[:MAX_SHOWN]!r}.", param="class"
        )
    return NAMES[name]


def _limits(limits: Limits, given: dict[str, int | None]) -> Limits:
    unknown = set(given) - set(Limits.__struct_fields__)
    if unknown:
        raise InvalidRequest(
            f"There is no limit {min(unknown)!r}; there are {', '.join(Limits.__struct_fields__)}.",
            param=f"limits.{min(unknown)}",
        )
    return msgspec.structs.replace(limits, **given)


def _note(
    book: Book,
    author: Author,
    action: str,
    about: tuple[str, str],
    before: object | None,
    after: object | None,
) -> None:
    tenant, subject = about
    book.note(
        AuditEntry(
            at=author.now,
            who=author.who,
            action=action,
            tenant=tenant,
            subject=subject,
            before=_json(before),
            after=_json(after),
        )
    )


def _json(value: object | None) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()
