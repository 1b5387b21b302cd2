"""Clients that say they are still there: `X-Headway-Connection-Id`, and a beat now and then."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from headway.core.base.clock import Clock
from headway.core.base.errors import ClientSilent, InvalidRequest, NotFound
from headway.core.base.units import Seconds
from headway.core.route.heartbeat import Heartbeats
from headway.core.tenancy.tenant import Principal
from headway.service.gateway.flights import Helper
from headway.service.gateway.http import Exchange
from headway.service.gateway.pages import Page

HEADER = "x-headway-connection-id"
PATH = re.compile(r"/v1/connections/([^/]*)/heartbeat")
CONNECTION_ID = re.compile(r"[A-Za-z0-9._-]{16,128}")


class Beats:
    """The watched connections of one gateway."""

    def __init__(self, clock: Clock, timeout: Seconds) -> None:
        self._clock = clock
        self._heartbeats = Heartbeats(timeout)

    def __len__(self) -> int:
        return len(self._heartbeats)

    def beat(self, exchange: Exchange, principal: Principal) -> Page:
        """Answer a beat: 204; raises NotFound when its sender has no request of that name."""
        found = PATH.fullmatch(exchange.path)
        assert found is not None, exchange.path
        if not self._heartbeats.beat(_owner(principal), found[1], self._clock.now()):
            raise NotFound("No request of yours with this connection id is under way.")
        return Page(204, b"")

    @contextmanager
    def watched(self, exchange: Exchange, principal: Principal) -> Iterator[list[Helper]]:
        """Watch the request's client within the block, if it asks for that.

        Gives what has to run beside the request's work: it never returns, and raises ClientSilent
        once the client has been silent for too long. Raises InvalidRequest.
        """
        names = exchange.headers(HEADER)
        if not names:
            yield []
            return
        if len(names) > 1 or not CONNECTION_ID.fullmatch(names[0]):
            raise InvalidRequest(
                "the connection id must be one header of 16 to 128 characters A-Z a-z 0-9 . _ -, "
                "random for each request",
                param=HEADER,
            )
        owner = _owner(principal)
        self._heartbeats.open(owner, names[0], self._clock.now())
        try:
            yield [partial(self._until_silent, owner, names[0])]
        finally:
            self._heartbeats.close(owner, names[0])

    async def _until_silent(self, owner: tuple[str, str], name: str) -> None:
        while (left := self._heartbeats.left(owner, name, self._clock.now())) > 0:
            await asyncio.sleep(left)
        raise ClientSilent(
            f"no heartbeat came for {self._heartbeats.timeout:g} s, so the request was ended; beat "
            f"about every third of that"
        )


def _owner(principal: Principal) -> tuple[str, str]:
    return principal.tenant.name, principal.key_id
