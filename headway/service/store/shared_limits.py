"""Limits in Redis as long as it answers, and a share of them in memory while it does not.

The choice for an outage is to go on: each gateway counts its share of every limit by itself,
the limit over the number of gateways seen lately unless a share is set, and never less than one.
All gateways together then stay near the limits without speaking to each other; a tenant that
comes to one gateway only gets less than its due. What requests cost meanwhile is told to Redis when
it is back. Calls do not wait for Redis while it is away: one task looks for it, at intervals
that grow and differ from gateway to gateway.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import msgspec

from headway.core.base.errors import StoreUnavailable
from headway.core.base.units import Seconds
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.store.limit_scripts import ENTER, RESERVE, Script
from headway.service.store.redis_limits import LIMIT_OF, RedisLimits

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_FIRST_S = 0.5
LOOK_LIMIT_S = 5.0
AWAY_RETRY_S = LOOK_LIMIT_S  # what a share cannot grant, the whole limit may, once it is back
MAX_LATE = 50_000  # ends of requests that are kept for Redis's return


class _End(NamedTuple):
    """A claim that ended while Redis was away, or that it was not asked about."""

    claim: Claim
    tokens: int
    cost: int
    was_local: bool  # it was granted from the share
    at: float


class SharedLimits:
    """A LimitStore over Redis that never fails; made and used on one event loop."""

    def __init__(
        self,
        store: RedisLimits,
        gateway: str,
        *,
        num_at_once: int,
        share: float | None = None,
        rng: Random | None = None,
    ) -> None:
        """At most `num_at_once` calls are under way; `share` is a part of each limit, 0 to 1."""
        self._store = store
        self._gateway = gateway
        self._share = share
        self._rng = rng or Random()
        self._turns = asyncio.Semaphore(num_at_once)
        self._away = _Away(self._look)
        self._spent: dict[str, int] = {}  # tenant with a budget -> micros, as last heard of
        self._num_gateways = 1
        self.num_degraded = 0  # answers given from the share

    @property
    def is_up(self) -> bool:
        """Whether Redis counts."""
        return self._away.local is None

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Count one request and take one slot, or neither."""
        answer = await self._asked(ENTER, claim, now)
        if answer is None:
            answer = await self._local().enter(self._part(claim), now)
        return self._told(answer, claim)

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Take tokens and cost for a claim that has entered; denied, it has left."""
        answer = await self._asked(RESERVE, claim, now)
        if answer is not None:
            return answer
        answer = await self._local().reserve(self._part(claim), now)
        if isinstance(answer, Denied):  # Redis may still hold its slot
            self._away.late.append(_End(claim, 0, 0, False, now))
        else:
            self._away.granted.add(claim.id)
        return self._told(answer, claim)

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Give back its slot and what it did not use."""
        was_local = claim.id in self._away.granted
        self._away.granted.discard(claim.id)
        end = _End(claim, tokens, cost, was_local, now)
        if self._away.local is not None:
            await self._away.local.settle(claim, tokens, cost, now)
        elif await self._shared(lambda: self._end(end), bool) is not None:
            return
        self._away.late.append(end)

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Their slots are theirs for another LEASE_S; and this gateway is here for as long."""
        if self._away.local is not None:
            await self._away.local.renew(claims, now)
            return

        async def renewed() -> int:
            await self._store.renew(claims, now)
            return await self._store.announce(self._gateway, now)

        num_gateways = await self._shared(renewed, int)
        if num_gateways is not None:
            self._num_gateways = max(1, num_gateways)

    async def close(self) -> None:
        """Stop looking for Redis, and leave it."""
        await self._away.close()
        await self._store.close()
