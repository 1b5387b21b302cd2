"""Limits in Redis as long as it answers, and a share of them in memory while it does not.

The choice for an outage is to go on: each gateway counts its share of every limit by itself,
the limit over the number of gateways seen lately unless a share is set, and never less than one.
All gateways together then stay near the limits without speaking to each other; a tenant that
comes to one gateway only gets less than its due. What requests cost meanwhile is told to Redis when
it is back. No request waits for Redis once it is known to be away: one task looks for it, at
intervals that grow and differ from gateway to gateway.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import msgspec

from headway.core.base.errors import StoreUnavailable
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.store.limit_scripts import ENTER, RESERVE, Script
from headway.service.store.redis_limits import LIMIT_OF, RedisLimits

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_FIRST_S = 0.5
LOOK_LIMIT_S = 5.0
AWAY_RETRY_S = LOOK_LIMIT_S  # what a share cannot grant, the whole limit may once it is back
MAX_LATE = 50_000  # ends of requests that are kept for Redis's return


class _End(NamedTuple):
    """A claim that ended."""

    claim: Claim
    tokens: int
    cost: int
    at: float
    was_local: bool  # its tokens and cost were taken from the share


class _Share:
    """Which part of a limit is this gateway's while nobody counts for all."""

    def __init__(self, fixed: float | None) -> None:
        self._fixed = fixed
        self.num_gateways = 1

    @property
    def part(self) -> float:
        """Above 0, at most 1."""
        return 1 / self.num_gateways if self._fixed is None else self._fixed

    def of(self, limit: int | None) -> int | None:
        """Of one limit; never nothing of something."""
        if not limit:
            return limit
        if self._fixed is not None:
            return max(1, int(limit * self._fixed))
        return max(1, limit // self.num_gateways)


class SharedLimits:
    """A LimitStore over Redis that never fails; used on one event loop."""

    def __init__(
        self,
        store: RedisLimits,
        gateway: str,
        *,
        share: float | None = None,
        rng: Random | None = None,
        on_back: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`gateway` is this one's name; `share` is a part of each limit, above 0 and at most 1.

        `on_back` is called when Redis counts again, which may have forgotten everything.
        """
        self._store = store
        self._gateway = gateway
        self._share = _Share(share)
        self._rng = rng or Random()
        self._on_back = on_back
        self._turns = asyncio.Semaphore(store.max_connections)
        self._spent: dict[str, int] = {}  # tenant with a budget -> micros, as last heard of
        self._local: MemoryLimits | None = None  # while Redis is away
        self._granted: set[str] = set()  # claims that reserved there
        self._late: deque[_End] = deque(maxlen=MAX_LATE)
        self._looking: asyncio.Task[None] | None = None
        self.num_degraded = 0  # answers given from the share

    @property
    def is_up(self) -> bool:
        """Whether Redis counts."""
        return self._local is None

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Count one request and take one slot, or neither."""
        answer = await self._ask(ENTER, claim, now)
        if answer is not None:
            return answer
        return self._told(await self._here().enter(self._part(claim), now), claim)

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Take tokens and cost for a claim that has entered; denied, it has left."""
        answer = await self._ask(RESERVE, claim, now)
        if answer is not None:
            return answer
        answer = self._told(await self._here().reserve(self._part(claim), now), claim)
        if isinstance(answer, Denied):  # Redis may still hold a slot for it
            self._late.append(_End(claim, 0, 0, now, was_local=False))
        else:
            self._granted.add(claim.id)
        return answer

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Give back its slot and what it did not use."""
        end = _End(claim, tokens, cost, now, claim.id in self._granted)
        self._granted.discard(claim.id)
        if await self._at_redis(lambda: self._tell(end)) is None:
            self._late.append(end)
            await self._here().settle(claim, tokens, cost, now)

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Their slots are theirs for another LEASE_S; and this gateway is here for as long."""

        async def renewed() -> int:
            await self._store.renew(claims, now)
            return await self._store.announce(self._gateway, now)

        num_gateways = await self._at_redis(renewed)
        if num_gateways is not None:
            self._share.num_gateways = max(1, num_gateways)
        else:
            await self._here().renew(claims, now)

    async def spent_at_least(self, tenant: str, micros: int, now: float) -> None:
        """So much is known to have been spent in the month of now; nothing while Redis is away."""

        async def told() -> bool:
            await self._store.spent_at_least(tenant, micros, now)
            return True

        await self._at_redis(told)

    async def close(self) -> None:
        """Stop looking for Redis, and leave it."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await self._store.close()

    async def _ask(self, script: Script, claim: Claim, now: float) -> Granted | Denied | None:
        found = await self._at_redis(lambda: self._store.asked(script, claim, now))
        if found is None:
            return None
        answer, spent = found
        if claim.limits.monthly_budget is not None:
            self._spent[claim.tenant] = spent
        return answer

    async def _at_redis(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """What the call returns; None while Redis is away, without waiting for it."""
        async with self._turns:
            if self._local is not None:
                return None
            try:
                return await call()
            except StoreUnavailable as error:
                self._lost(error)
                return None

    async def _tell(self, end: _End) -> bool:
        """Settle a claim in Redis, and count there what it cost if that is not known there."""
        claim = end.claim
        was_known = await self._store.settled(claim, end.tokens, end.cost, end.at)
        if end.was_local and not was_known and end.cost:
            await self._store.spend(claim.tenant, end.cost, end.at)
        return True

    def _lost(self, error: StoreUnavailable) -> None:
        if self._local is not None:
            return
        self._local = MemoryLimits()
        share = self._share.part
        log.warning("limit_store_away", extra={"error": error.message, "share": round(share, 4)})
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        """Until Redis is back and knows what ended meanwhile."""
        pause, num_answers = LOOK_FIRST_S, self.num_degraded
        while True:
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, LOOK_LIMIT_S)
            try:
                self._share.num_gateways = await self._store.announce(self._gateway, 0.0)
                await self._store.check_whole()
                while self._late:
                    end = self._late.popleft()
                    try:
                        await self._tell(end)
                    except StoreUnavailable:
                        self._late.appendleft(end)
                        raise
            except StoreUnavailable:
                continue
            break
        self._local = None
        num_answers = self.num_degraded - num_answers
        log.warning("limit_store_back", extra={"num_degraded": num_answers})
        if self._on_back is not None:
            await self._on_back()

    def _here(self) -> MemoryLimits:
        """Counts of the share; what is not known any more once Redis is back."""
        return MemoryLimits() if self._local is None else self._local

    def _part(self, claim: Claim) -> Claim:
        """The claim, with this gateway's share of its limits.

        What fits the whole limit, but not the share, may take all of the share.
        """
        whole = claim.limits
        budget = whole.monthly_budget
        left = None if budget is None else max(0, budget - self._spent.get(claim.tenant, 0))
        limits = Limits(
            requests_per_minute=self._share.of(whole.requests_per_minute),
            tokens_per_minute=self._share.of(whole.tokens_per_minute),
            concurrent_requests=self._share.of(whole.concurrent_requests),
            monthly_budget=self._share.of(left),
        )
        tokens, most = claim.tokens, limits.tokens_per_minute
        if most is not None and tokens <= (whole.tokens_per_minute or 0):
            tokens = min(tokens, most)
        return msgspec.structs.replace(claim, limits=limits, tokens=tokens)

    def _told(self, answer: Granted | Denied, claim: Claim) -> Granted | Denied:
        """The share's answer in terms of the whole limit."""
        self.num_degraded += 1
        if isinstance(answer, Granted):
            return answer
        limit = getattr(claim.limits, LIMIT_OF[answer.kind])
        retry_s = answer.retry_after_s
        if answer.kind is LimitKind.BUDGET and claim.cost <= limit:
            retry_s = AWAY_RETRY_S
        return msgspec.structs.replace(answer, limit=limit, retry_after_s=retry_s)
