"""Requests that generate nothing but are work all the same: each is one of its tenant's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.core.tenancy.limits import UNLIMITED, Claim, Granted
from headway.core.tenancy.tenant import Principal
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Books


@asynccontextmanager
async def counted(exchange: Exchange, principal: Principal, books: Books) -> AsyncIterator[None]:
    """Within the block it is one request and one slot of its tenant's, and no tokens.

    The answer gets the limits' headers. Raises RateLimited, and then nothing is counted.
    """
    tenant = principal.tenant
    limits = books.rules.table.of(tenant)
    if limits == UNLIMITED:
        yield
        return
    claim = Claim(id=exchange.id, tenant=tenant.name, limits=limits)
    is_held = True  # also where this is cancelled before the store has answered
    try:
        answer = await books.limits.enter(claim, books.wall_clock())
        is_held = isinstance(answer, Granted)
        books.rules.tell(exchange, tenant, claim, answer)
        yield
    finally:
        if is_held:
            await books.limits.settle(claim, 0, 0, books.wall_clock())
