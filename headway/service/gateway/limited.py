"""Requests that generate nothing but are work all the same: each is one of its tenant's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.core.tenancy.limits import UNLIMITED, Claim, Denied
from headway.core.tenancy.tenant import Principal
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_answers import denial, headers_of


@asynccontextmanager
async def counted(exchange: Exchange, principal: Principal, books: Books) -> AsyncIterator[None]:
    """Within the block it is one request and one slot of its tenant's, and no tokens.

    The answer gets the limits' headers. Raises RateLimited, and then nothing is counted.
    """
    tenant, rules = principal.tenant, books.rules
    limits = rules.table.of(tenant)
    if limits == UNLIMITED:
        yield
        return
    claim = Claim(id=exchange.id, tenant=tenant.name, limits=limits)
    is_held = True  # also where this is cancelled before the store has answered
    try:
        answer = await books.limits.enter(claim, books.wall_clock())
        for name, value in headers_of(limits, answer.standing):
            exchange.add_header(name, value)
        if isinstance(answer, Denied):
            is_held = False
            rules.on_denied(tenant, answer.kind)
            raise denial(claim, answer, rules.currency)
        yield
    finally:
        if is_held:
            await books.limits.settle(claim, 0, 0, books.wall_clock())
