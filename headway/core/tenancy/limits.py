"""A tenant's own limits, and the seam behind which they are counted exactly.

A request *enters* before it is tokenized (one request, one slot), *reserves* once its size is
known (prompt and max_tokens, and the most they can cost), and is *settled* at its end, whatever
that was: what it did not use is given back as if it had never been taken. A refusal leaves every
count as it was before the request entered.

Limits by the minute are buckets (`core.tenancy.bucket`): up to a minute's worth at once, then as
it drains. Times are seconds since 1970, because gateways on several hosts share the counts; a
store that has a clock of its own uses that one. One millisecond is the finest time there is.

Every call may be made again with the same claim, as after a time-out: what was granted before is
granted again and counted once.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.bucket import MAX_LIMIT

LEASE_S = 60.0  # a slot whose gateway died is free again after this long without `renew`
SLOT_RETRY_S = 1.0  # when to try again for a slot; nobody knows when one comes free
MAX_CONCURRENT = 1_000_000
MAX_BUDGET = 10**15  # micros; with what is reserved still exact in Redis's numbers


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may use; None: as much as there is, 0: nothing."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and answer
    concurrent_requests: int | None = None
    # Micros of the currency of the prices, a calendar month (UTC).
    monthly_budget: int | None = None

    @property
    def depend_on_size(self) -> bool:
        """Whether a request's size matters to them, so that it has to reserve."""
        return self.tokens_per_minute is not None or self.monthly_budget is not None


UNLIMITED = Limits()
BOUNDS = {
    "requests_per_minute": MAX_LIMIT,
    "tokens_per_minute": MAX_LIMIT,
    "concurrent_requests": MAX_CONCURRENT,
    "monthly_budget": MAX_BUDGET,
}


def check_limits(limits: Limits, where: str) -> None:
    """Raises InvalidSetting that names the field for a limit that cannot be counted."""
    for name, most in BOUNDS.items():
        value = getattr(limits, name)
        if value is not None and not 0 <= value <= most:
            raise InvalidSetting(
                f"{where}.{name}", f"must be from 0 to {most}, or left out for none; got {value}"
            )


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
    retry_after_s: float | None  # when the same claim may be granted; None: never
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
        """Take `tokens` and `cost` for a claim that has entered; denied, it has left.

        One that is not known (the store lost it) is granted or denied by itself.
        """
        ...

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """It has ended and used so much: the rest and its slot are given back.

        What it used beyond its reservation is taken too: a bucket then owes, up to one more
        minute's worth. The second call for a claim changes nothing, nor does one for a claim that
        was granted elsewhere or denied. A request that never reserved gives its slot back; that
        it was made still counts.
        """
        ...

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """These are still under way: their slots are theirs for another LEASE_S.

        One that was settled meanwhile is left out.
        """
        ...
