"""Paths under /admin: which call they mean, and that nobody without an admin key gets further."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from headway.core.base.errors import HeadwayError, InvalidRequest, MethodNotAllowed, NotFound
from headway.service.gateway.admin_keys import AdminKeys
from headway.service.gateway.http import Exchange
from headway.service.gateway.pages import Page

log = logging.getLogger(__name__)

PREFIX = "/admin"
MAX_BODY_BYTES = 256 * 1024
BODY_S = 10.0


class AdminCall(NamedTuple):
    """One call of somebody who may make it: over HTTP, or of the command line on the database."""

    who: str  # as the audit log names them
    values: tuple[str, ...]  # what stands in place of the path's {names}, in order
    query: Callable[[str], str | None]  # a parameter's value
    body: Callable[[], Awaitable[bytes]]  # b"" for none
    given: tuple[str, ...] = ()  # names of all parameters


AdminHandler = Callable[[AdminCall], Awaitable[Page]]


class AdminRoute(NamedTuple):
    """A method of a path such as /admin/tenants/{name}; the part in braces is one segment."""

    method: str
    path: str
    handler: AdminHandler
    query: tuple[str, ...] = ()  # the parameters that it takes
    takes_rest: bool = False  # the last part in braces is all that follows, with its slashes


class AdminTable:
    """Finds the handler of a call."""

    def __init__(self, routes: Sequence[AdminRoute]) -> None:
        self._routes = routes

    async def call(self, method: str, path: str, call: AdminCall) -> Page:
        """The page of what is at that path; raises NotFound, MethodNotAllowed and its errors."""
        fits = {
            route.method: (route, values)
            for route in self._routes
            if (values := _values(route, path)) is not None
        }
        if not fits:
            raise NotFound("There is nothing at this path; see /admin/openapi.json.")
        if method not in fits:
            allowed = ", ".join(sorted(fits))
            raise MethodNotAllowed(f"{method} is not allowed here; use {allowed}.", allowed=allowed)
        route, values = fits[method]
        _check_query(route, call)
        return await route.handler(call._replace(values=values))


class AdminRoutes:
    """All of /admin. Without a key there is no such object, and no such path."""

    def __init__(self, keys: AdminKeys, table: AdminTable, refused: Callable[[], None]) -> None:
        """`refused` counts requests without the right key."""
        self._keys = keys
        self._table = table
        self._refused = refused

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path is under /admin."""
        return path == PREFIX or path.startswith(PREFIX + "/")

    async def answer(self, exchange: Exchange) -> Page:
        """The call's page; raises HeadwayError. The key is checked before the path is."""
        try:
            who = self._keys.check(exchange.headers("authorization"), exchange.address)
        except HeadwayError:
            self._refused()
            log.warning(
                "admin_refused",
                extra={"request_id": exchange.shown_id, "address": exchange.address},
            )
            raise

        async def body() -> bytes:
            return await exchange.body(MAX_BODY_BYTES, BODY_S)

        def query(name: str) -> str | None:
            value = exchange.query(name)
            if value is not None and "\0" in value:
                raise InvalidRequest(f"{name} has a NUL in it, as nothing here.", param=name)
            return value

        if "\0" in exchange.path:  # PostgreSQL has no text with one, and takes it for a fault
            raise NotFound("There is nothing at this path; see /admin/openapi.json.")
        call = AdminCall(who, (), query, body, exchange.query_names)
        return await self._table.call(exchange.method, exchange.path, call)


def _check_query(route: AdminRoute, call: AdminCall) -> None:
    """Raises InvalidRequest: what narrows an answer must not be misread as nothing."""
    for name in call.given:
        if name not in route.query:
            known = f"there are {', '.join(route.query)}" if route.query else "there are none"
            raise InvalidRequest(f"{name!r} is no parameter here; {known}.", param=name)
        if call.query(name) is None:
            raise InvalidRequest(f"{name} is empty; give a value or leave it out.", param=name)


def _values(route: AdminRoute, path: str) -> tuple[str, ...] | None:
    """What stands in place of the route's {names}; None where the path is another one."""
    parts = route.path.split("/")
    segments = path.split("/", len(parts) - 1) if route.takes_rest else path.split("/")
    if len(parts) != len(segments):
        return None
    pairs = list(zip(parts, segments, strict=True))
    if not all(part == given or (part.startswith("{") and given) for part, given in pairs):
        return None
    return tuple(given for part, given in pairs if part.startswith("{"))
