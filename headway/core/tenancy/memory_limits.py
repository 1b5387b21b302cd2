"""Limits counted in this process's memory: for one gateway, and for one whose store is away."""

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.tenancy.bucket import Bucket
from headway.core.tenancy.budget import month_of
from headway.core.tenancy.limits import (
    LEASE_S,
    SLOT_RETRY_S,
    Claim,
    Denied,
    Granted,
    LimitKind,
    Limits,
    Standing,
)

LEASE_MS = int(LEASE_S * 1000)
KEPT_MONTHS = 2


class _Reserved(NamedTuple):
    """What a claim has taken beside its slot."""

    tokens: int
    taken_ms: int | None  # of the tokens; None where there is no such limit
    cost: int
    month: int


class _Counts:
    """All that is counted of one tenant."""

    __slots__ = ("entered", "requests", "reserved", "slots", "spent", "tokens")

    def __init__(self) -> None:
        self.requests = Bucket()
        self.tokens = Bucket()
        self.slots: dict[str, int] = {}  # claim -> when its lease ends, ms
        self.entered: dict[str, int | None] = {}  # claim -> when its request was counted, ms
        self.reserved: dict[str, _Reserved] = {}
        self.spent: dict[int, int] = {}  # beginning of a month -> micros, reserved ones too

    def drain(self, limits: Limits, now_ms: int) -> None:
        """Bring both buckets to the present and to these limits."""
        for bucket, limit in (
            (self.requests, limits.requests_per_minute),
            (self.tokens, limits.tokens_per_minute),
        ):
            if limit is not None:
                bucket.drain(now_ms)
                bucket.set_limit(limit)

    def standing(self, limits: Limits) -> Standing:
        """As of the last `drain`."""
        counts_requests = limits.requests_per_minute is not None
        counts_tokens = limits.tokens_per_minute is not None
        return Standing(
            remaining_requests=self.requests.left() if counts_requests else None,
            reset_requests_s=self.requests.reset_ms() / 1000 if counts_requests else 0.0,
            remaining_tokens=self.tokens.left() if counts_tokens else None,
            reset_tokens_s=self.tokens.reset_ms() / 1000 if counts_tokens else 0.0,
        )

    def num_slots(self, now_ms: int) -> int:
        """Slots in use; those whose lease has ended are free."""
        for claim_id in [key for key, until in self.slots.items() if until <= now_ms]:
            del self.slots[claim_id]
        return len(self.slots)

    def leave(self, claim_id: str) -> None:
        """A claim that was denied at `reserve`: its request was never made."""
        self.slots.pop(claim_id, None)
        taken_ms = self.entered.pop(claim_id, None)
        if taken_ms is not None:
            self.requests.give_back(1, taken_ms)

    def spend(self, month: int, micros: int) -> None:
        """Add to what was spent in a month, and forget old ones."""
        self.spent[month] = max(0, self.spent.get(month, 0) + micros)
        while len(self.spent) > KEPT_MONTHS:
            del self.spent[min(self.spent)]


class MemoryLimits:
    """A LimitStore of this process alone; calls return at once."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Counts] = {}

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Count one request and take one slot, or neither."""
        counts, limits, now_ms = self._of(claim.tenant), claim.limits, to_ms(now)
        counts.drain(limits, now_ms)
        if claim.id in counts.entered:
            return Granted(standing=counts.standing(limits))
        per_minute, slots = limits.requests_per_minute, limits.concurrent_requests
        if per_minute is not None and (wait_ms := counts.requests.wait_ms(1)) != 0:
            return _denied(LimitKind.REQUESTS, wait_ms, per_minute, counts.standing(limits))
        if slots is not None and counts.num_slots(now_ms) >= slots:
            wait_ms = int(SLOT_RETRY_S * 1000)
            return _denied(LimitKind.CONCURRENCY, wait_ms, slots, counts.standing(limits))
        counts.entered[claim.id] = None if per_minute is None else counts.requests.take(1)
        if slots is not None:
            counts.slots[claim.id] = now_ms + LEASE_MS
        return Granted(standing=counts.standing(limits))

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Take tokens and cost for a claim that has entered; denied, it has left."""
        counts, limits, now_ms = self._of(claim.tenant), claim.limits, to_ms(now)
        counts.drain(limits, now_ms)
        if claim.id in counts.reserved:
            return Granted(standing=counts.standing(limits))
        per_minute, budget = limits.tokens_per_minute, limits.monthly_budget
        month, next_month = month_of(now_ms)
        if per_minute is not None:
            wait_ms = counts.tokens.wait_ms(claim.tokens)
            if wait_ms != 0:
                counts.leave(claim.id)
                return _denied(LimitKind.TOKENS, wait_ms, per_minute, counts.standing(limits))
        if budget is not None and claim.cost and counts.spent.get(month, 0) + claim.cost > budget:
            counts.leave(claim.id)
            wait = None if claim.cost > budget else next_month - now_ms
            return _denied(LimitKind.BUDGET, wait, budget, counts.standing(limits))
        taken_ms = None if per_minute is None else counts.tokens.take(claim.tokens)
        counts.entered.setdefault(claim.id, None)
        counts.reserved[claim.id] = _Reserved(claim.tokens, taken_ms, claim.cost, month)
        counts.spend(month, claim.cost)
        return Granted(standing=counts.standing(limits))

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Give back its slot and what it did not use."""
        counts, now_ms = self._of(claim.tenant), to_ms(now)
        if claim.id not in counts.entered:
            return
        del counts.entered[claim.id]
        counts.slots.pop(claim.id, None)
        reserved = counts.reserved.pop(claim.id, None)
        if reserved is None:
            return
        counts.spend(reserved.month, cost - reserved.cost)
        if reserved.taken_ms is None:
            return
        counts.tokens.drain(now_ms)
        if tokens <= reserved.tokens:
            counts.tokens.give_back(reserved.tokens - tokens, reserved.taken_ms)
        else:
            counts.tokens.owe(tokens - reserved.tokens)

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Their slots are theirs for another LEASE_S."""
        until = to_ms(now) + LEASE_MS
        for claim in claims:
            counts = self._of(claim.tenant)
            if claim.id in counts.entered and claim.limits.concurrent_requests is not None:
                counts.slots[claim.id] = until

    async def spend(self, tenant: str, micros: int, now: float) -> None:
        """Count what was spent without a claim, in the month of now."""
        self._of(tenant).spend(month_of(to_ms(now))[0], micros)

    async def spent_at_least(self, tenant: str, micros: int, now: float) -> None:
        """So much is known to have been spent in the month of now."""
        missing = micros - await self.spent(tenant, now)
        if missing > 0:
            await self.spend(tenant, missing, now)

    async def spent(self, tenant: str, now: float) -> int:
        """Micros spent or reserved in the month of now."""
        return self._of(tenant).spent.get(month_of(to_ms(now))[0], 0)

    def _of(self, tenant: str) -> _Counts:
        if tenant not in self._tenants:
            self._tenants[tenant] = _Counts()
        return self._tenants[tenant]


def to_ms(now: float) -> int:
    """Whole milliseconds, the finest time that limits know."""
    return round(now * 1000)


def _denied(kind: LimitKind, wait_ms: int | None, limit: int, standing: Standing) -> Denied:
    retry_s = None if wait_ms is None else wait_ms / 1000
    return Denied(kind=kind, retry_after_s=retry_s, limit=limit, standing=standing)
