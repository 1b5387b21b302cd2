"""Paths under /admin: which call they mean, and that nobody without an admin key gets further."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from headway.core.base.errors import HeadwayError, MethodNotAllowed, NotFound
from headway.service.gateway.admin_keys import AdminKeys
from headway.service.gateway.http import Exchange
from headway.service.gateway.pages import Page

log = logging.getLogger(__name__)

PREFIX = "/admin"
MAX_BODY_BYTES = 256 * 1024
BODY_S = 10.0


class AdminCall(NamedTuple):
    """One call whose admin key was right."""

    exchange: Exchange
    who: str
    values: tuple[str, ...]  # what stands in place of the path's {names}, in order

    async def body(self) -> bytes:
        """The request's body; "{}" for none."""
        return await self.exchange.body(MAX_BODY_BYTES, BODY_S) or b"{}"


AdminHandler = Callable[[AdminCall], Awaitable[Page]]


class AdminRoute(NamedTuple):
    """A method of a path such as /admin/tenants/{name}; the part in braces is one segment."""

    method: str
    path: str
    handler: AdminHandler


class AdminRoutes:
    """All calls under /admin. Without a key there is no such object, and no such path."""

    def __init__(
        self, keys: AdminKeys, routes: Sequence[AdminRoute], refused: Callable[[], None]
    ) -> None:
        """`refused` counts requests without the right key."""
        self._keys = keys
        self._routes = [(route, route.path.split("/")) for route in routes]
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
        segments = exchange.path.split("/")
        fits = [route for route, parts in self._routes if _fits(parts, segments)]
        if not fits:
            raise NotFound("There is nothing at this path; see /openapi.json.")
        for route in fits:
            if route.method == exchange.method:
                values = _values(route.path.split("/"), segments)
                return await route.handler(AdminCall(exchange, who, values))
        allowed = ", ".join(sorted(route.method for route in fits))
        raise MethodNotAllowed(f"{exchange.method} is not allowed here; use {allowed}.")


def _fits(parts: Sequence[str], segments: Sequence[str]) -> bool:
    return len(parts) == len(segments) and all(
        part == segment or (part.startswith("{") and segment)
        for part, segment in zip(parts, segments, strict=True)
    )


def _values(parts: Sequence[str], segments: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        segment for part, segment in zip(parts, segments, strict=True) if part.startswith("{")
    )
