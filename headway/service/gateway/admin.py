"""Tenants, keys and the audit log over HTTP, for the operator."""

import asyncio
import os
import time
from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from headway.core.base.errors import Conflict, InvalidRequest, NotFound
from headway.core.tenancy import administer
from headway.core.tenancy.account import KEY_RANDOM_BYTES, NewKey, new_key
from headway.core.tenancy.administer import Author, KeyView, TenantChange, view_key, view_tenant
from headway.core.tenancy.book import MAX_AUDIT, AuditEntry, AuditQuery, Book
from headway.service.gateway.accounts import Accounts
from headway.service.gateway.admin_routes import AdminCall, AdminRoute
from headway.service.gateway.pages import Page
from headway.service.openai.admin_schema import (
    AuditList,
    AuditView,
    Deleted,
    EraseBody,
    Erased,
    Exported,
    KeyList,
    NewKeyBody,
    NewTenantBody,
    RotateBody,
    TenantList,
)
from headway.service.openai.decode import convert, decode_object
from headway.service.openai.openapi_admin import openapi_admin

T = TypeVar("T")
NO_STORE = ((b"cache-control", b"no-store"),)


class AccountPages:
    """The calls; every change is known to this gateway when it is answered."""

    def __init__(
        self,
        accounts: Accounts,
        reserved: Collection[str] = (),
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`reserved` are names of the settings' tenants, which a new one must not have."""
        self._accounts = accounts
        self._reserved = reserved  # as they are: a reload changes them
        self._wall_clock = wall_clock

    def routes(self) -> tuple[AdminRoute, ...]:
        """All of them."""
        return (
            AdminRoute("GET", "/admin/tenants", self._tenants),
            AdminRoute("POST", "/admin/tenants", self._create_tenant),
            AdminRoute("GET", "/admin/tenants/{name}", self._tenant),
            AdminRoute("PATCH", "/admin/tenants/{name}", self._change_tenant),
            AdminRoute("DELETE", "/admin/tenants/{name}", self._delete_tenant),
            AdminRoute("GET", "/admin/tenants/{name}/export", self._export),
            AdminRoute("POST", "/admin/tenants/{name}/erase", self._erase),
            AdminRoute("GET", "/admin/tenants/{name}/keys", self._keys_of_tenant),
            AdminRoute("POST", "/admin/tenants/{name}/keys", self._create_key),
            AdminRoute("GET", "/admin/keys", self._all_keys),
            AdminRoute("POST", "/admin/keys/{id}/rotate", self._rotate_key),
            AdminRoute("POST", "/admin/keys/{id}/revoke", self._revoke_key),
            AdminRoute("GET", "/admin/audit", self._audit, ("tenant", "before", "limit")),
            AdminRoute("GET", "/admin/openapi.json", self._description),
        )

    async def _tenants(self, call: AdminCall) -> Page:
        found = await self._accounts.read(lambda book: book.tenants())
        return _page(TenantList(data=[view_tenant(each) for each in found]))

    async def _tenant(self, call: AdminCall) -> Page:
        name = self._name(call)
        found = await self._accounts.read(lambda book: administer.find_tenant(book, name))
        return _page(view_tenant(found))

    async def _create_tenant(self, call: AdminCall) -> Page:
        body = await _read(call, NewTenantBody)
        if body.name in self._reserved:
            raise Conflict(f"A tenant {body.name!r} stands in the server's settings.", param="name")
        author = self._author(call)
        record = await self._accounts.edit(
            lambda book: administer.create_tenant(book, body.name, body, author)
        )
        return _page(view_tenant(record), 201)

    async def _change_tenant(self, call: AdminCall) -> Page:
        name, change, author = self._name(call), await _read(call, TenantChange), self._author(call)
        record = await self._accounts.edit(
            lambda book: administer.change_tenant(book, name, change, author)
        )
        return _page(view_tenant(record))

    async def _delete_tenant(self, call: AdminCall) -> Page:
        name, author = self._name(call), self._author(call)
        await self._accounts.edit(lambda book: administer.delete_tenant(book, name, author))
        return _page(Deleted(name=name))

    async def _export(self, call: AdminCall) -> Page:
        name, author = call.values[0], self._author(call)
        tables = await self._accounts.edit(
            lambda book: administer.export_tenant(book, name, author)
        )
        return _page(Exported(name=name, tables=tables))

    async def _erase(self, call: AdminCall) -> Page:
        name, body, author = call.values[0], await _read(call, EraseBody), self._author(call)
        if body.confirm != name:
            raise InvalidRequest(
                "confirm has to be the tenant's name: all that is kept about it will be gone.",
                param="confirm",
            )
        rows = await self._accounts.edit(lambda book: administer.erase_tenant(book, name, author))
        return _page(Erased(name=name, rows=rows))

    async def _keys_of_tenant(self, call: AdminCall) -> Page:
        name = self._name(call)

        def found(book: Book) -> list[KeyView]:
            administer.find_tenant(book, name)
            return [view_key(each) for each in book.keys(name)]

        return _page(KeyList(data=await self._accounts.read(found)))

    async def _all_keys(self, call: AdminCall) -> Page:
        found = await self._accounts.read(lambda book: book.keys())
        return _page(KeyList(data=[view_key(each) for each in found]))

    async def _create_key(self, call: AdminCall) -> Page:
        name, body, author = self._name(call), await _read(call, NewKeyBody), self._author(call)
        expires = None if body.expires_in_s is None else author.now + body.expires_in_s
        made = await _new_key()
        record = await self._accounts.edit(
            lambda book: administer.add_key(book, name, made, body.label, expires, author)
        )
        return _page(view_key(record, made.text), 201)

    async def _rotate_key(self, call: AdminCall) -> Page:
        key_id, body, author = call.values[0], await _read(call, RotateBody), self._author(call)
        made = await _new_key()
        record = await self._accounts.edit(
            lambda book: administer.rotate_key(book, key_id, made, body.overlap_s, author)
        )
        return _page(view_key(record, made.text), 201)

    async def _revoke_key(self, call: AdminCall) -> Page:
        key_id, author = call.values[0], self._author(call)
        await call.body()  # none is needed; one that is sent is read, so that the connection stays
        record = await self._accounts.edit(lambda book: administer.revoke_key(book, key_id, author))
        return _page(view_key(record))

    async def _audit(self, call: AdminCall) -> Page:
        query = AuditQuery(
            tenant=call.query("tenant"),
            before=_whole(call, "before", None, 2**63 - 1),
            limit=_whole(call, "limit", 100, MAX_AUDIT) or 100,
        )
        found = await self._accounts.read(lambda book: book.audit(query))
        return _page(AuditList(data=[view_entry(each) for each in found]))

    async def _description(self, call: AdminCall) -> Page:
        return Page(200, msgspec.json.encode(openapi_admin()))

    def _name(self, call: AdminCall) -> str:
        """The tenant that a path names; raises NotFound for one that only the settings have."""
        name = call.values[0]
        if name in self._reserved and self._accounts.tenant(name) is None:
            raise NotFound(
                f"The tenant {name!r} stands in the server's settings, and is changed there, with "
                "its keys; here are those of the database."
            )
        return name

    def _author(self, call: AdminCall) -> Author:
        return Author(call.who, self._wall_clock())


def view_entry(entry: AuditEntry) -> AuditView:
    """As it is shown, with the noted JSON inside."""
    return AuditView(
        id=entry.id,
        at=entry.at,
        who=entry.who,
        action=entry.action,
        tenant=entry.tenant,
        subject=entry.subject,
        before=msgspec.Raw(entry.before.encode()) if entry.before else None,
        after=msgspec.Raw(entry.after.encode()) if entry.after else None,
    )


async def _new_key() -> NewKey:
    """Fresh; its slow hash is taken in a thread."""
    return await asyncio.to_thread(new_key, os.urandom(KEY_RANDOM_BYTES))


async def _read(call: AdminCall, kind: type[T]) -> T:
    """The body; raises InvalidRequest, also for a field that is not known."""
    given = decode_object(await call.body() or b"{}")
    known = {field.encode_name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    if unknown := set(given) - known:
        name = min(unknown)
        raise InvalidRequest(
            f"There is no field {name[:80]!r}; there are {', '.join(sorted(known))}.", param=name
        )
    return convert(given, kind)


def _whole(call: AdminCall, name: str, default: int | None, most: int) -> int | None:
    text = call.query(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        raise InvalidRequest(f"{name} is a whole number of 1 to {most}.", param=name)
    return int(text)


def _page(body: msgspec.Struct, status: int = 200) -> Page:
    return Page(status, msgspec.json.encode(body), headers=NO_STORE)
