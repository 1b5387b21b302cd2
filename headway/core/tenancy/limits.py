"""A tenant's own limits, and the seam behind which they are counted exactly.

A request *enters* before it is tokenized (one request, one slot), *reserves* once its size is
known (prompt and max_tokens, and the most they can cost), and is *settled* at its end, whatever
that was: what it did not use is given back. A refusal leaves every count as it was before the
request entered. Times are seconds since 1970, because gateways on several hosts share the counts.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

LEASE_S = 60.0  # a slot whose gateway died is free again after this long without `renew`


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may use; None: as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and answer
    concurrent_requests: int | None = None
    monthly_budget: int | None = (
        None  # micros of the currency of the prices, a calendar month (UTC)
    )


UNLIMITED = Limits()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One request's claim on its tenant's limits."""

    id: str  # the gateway's id of the request: unique over all gateways
    tenant: str
    limits: Limits
    tokens: int = 0  # prompt + max_tokens of all its choices
    cost: int = 0  # micros; the most it may cost


class LimitKind(Enum):
    """Which limit refused."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    BUDGET = "budget"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the limits by the minute after this request; None: no such limit."""

    remaining_requests: int | None = None
    reset_requests_s: float = 0.0  # until all of them are there again
    remaining_tokens: int | None = None
    reset_tokens_s: float = 0.0


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """It may go on."""

    standing: Standing = Standing()


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """It may not; nothing of it is counted any more."""

    kind: LimitKind
    retry_after_s: float  # when the same claim could be granted, as far as known
    limit: int
    standing: Standing = Standing()


class LimitStore(Protocol):
    """Counts shared by all gateways that use the same store. Never raises for a store that is away:
    what it does then is its own, documented and counted choice.
    """

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Count one request and take one slot, or neither."""
        ...

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Take `tokens` and `cost` for a claim that has entered; denied, it has left."""
        ...

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """It has ended and used so much: the rest and its slot are given back.

        The second call for a claim changes nothing. A request that never reserved gives its slot
        back; that it was made still counts.
        """
        ...

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """These are still under way: their slots are theirs for another LEASE_S."""
        ...
