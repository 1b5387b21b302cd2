"""What a client is told of its tenant's limits: headers on every answer, and why it was refused.

Names and forms of the headers are OpenAI's.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headway.core.base.errors import QuotaExceeded, RateLimited
from headway.core.base.units import Seconds
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Limits, Standing
from headway.core.tenancy.tenant import Tenant
from headway.service.gateway.http import Exchange
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings

MICROS = 1_000_000


class LimitRules(NamedTuple):
    """What the gateway does with limits, beside counting."""

    table: LimitTable = LimitTable(RateLimitSettings())
    on_denied: Callable[[Tenant, LimitKind], None] = lambda tenant, kind: None
    currency: str = ""

    def tell(
        self, exchange: Exchange, tenant: Tenant, claim: Claim, answer: Granted | Denied
    ) -> None:
        """Have the client's answer say how its limits stand; raises RateLimited for a refusal."""
        for name, value in headers_of(claim.limits, answer.standing):
            exchange.add_header(name, value)
        if isinstance(answer, Denied):
            self.on_denied(tenant, answer.kind)
            raise denial(claim, answer, self.currency)


def headers_of(limits: Limits, standing: Standing) -> Iterator[tuple[str, str]]:
    """`x-ratelimit-*` of the limits by the minute that there are."""
    of_each = (
        (
            "requests",
            limits.requests_per_minute,
            standing.remaining_requests,
            standing.reset_requests_s,
        ),
        ("tokens", limits.tokens_per_minute, standing.remaining_tokens, standing.reset_tokens_s),
    )
    for what, limit, remaining, reset_s in of_each:
        if limit is not None and remaining is not None:
            yield f"x-ratelimit-limit-{what}", str(limit)
            yield f"x-ratelimit-remaining-{what}", str(remaining)
            yield f"x-ratelimit-reset-{what}", duration(reset_s)


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `120ms`, `1s`, `8.64s`, `6m0s`, `1h12m0s`; rounded up to ms."""
    ms = math.ceil(round(seconds * 1000, 3))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, part = divmod(ms, 1000)
    shown = f"{whole}.{part:03}".rstrip("0").rstrip(".") if part else str(whole)
    if hours:
        return f"{hours}h{minutes}m{shown}s"
    return f"{minutes}m{shown}s" if minutes else f"{shown}s"


def denial(claim: Claim, denied: Denied, currency: str) -> RateLimited:
    """The error of a refused claim: which limit, its value, and when to come again."""
    kind: type[RateLimited] = QuotaExceeded if denied.kind is LimitKind.BUDGET else RateLimited
    wait = None if denied.retry_after_s is None else Seconds(denied.retry_after_s)
    error = kind(_REASONS[denied.kind](claim, denied, currency), wait)
    if denied.kind is not LimitKind.BUDGET:
        error.error_type = denied.kind.value
    return error


def _of_requests(claim: Claim, denied: Denied, currency: str) -> str:
    if denied.retry_after_s is None:
        return f"No requests are allowed for {_who(claim)}: the limit is {denied.limit} a minute."
    return (
        f"Rate limit reached for {_who(claim)}: {denied.limit} requests a minute, all of them "
        f"used.{_when(denied)}"
    )


def _of_tokens(claim: Claim, denied: Denied, currency: str) -> str:
    asked = f"{claim.tokens} tokens (prompt and max_tokens together)"
    if denied.retry_after_s is None:
        return (
            f"Request too large for {_who(claim)}: the limit is {denied.limit} tokens a minute, "
            f"and this request asks for {asked}, which no waiting makes fit. Shorten the prompt "
            "or ask for a smaller max_tokens."
        )
    return (
        f"Rate limit reached for {_who(claim)}: {denied.limit} tokens a minute, of which "
        f"{denied.standing.remaining_tokens or 0} are left; this request asks for {asked}."
        f"{_when(denied)}"
    )


def _of_slots(claim: Claim, denied: Denied, currency: str) -> str:
    if denied.retry_after_s is None:
        return f"No requests are allowed for {_who(claim)}: {denied.limit} at the same time."
    return (
        f"Rate limit reached for {_who(claim)}: {denied.limit} requests at the same time, and as "
        "many are under way. Try again when one of them has ended."
    )


def _of_budget(claim: Claim, denied: Denied, currency: str) -> str:
    limit, cost = _money(denied.limit, currency), _money(claim.cost, currency)
    if denied.retry_after_s is None:
        return (
            f"Request too dear for {_who(claim)}: the budget is {limit} a month, and this request "
            f"may cost {cost}. Shorten the prompt or ask for a smaller max_tokens."
        )
    return (
        f"Budget of {_who(claim)} used up: {limit} a calendar month (UTC), and less is left than "
        f"the {cost} that this request may cost.{_when(denied)}"
    )


_REASONS: dict[LimitKind, Callable[[Claim, Denied, str], str]] = {
    LimitKind.REQUESTS: _of_requests,
    LimitKind.TOKENS: _of_tokens,
    LimitKind.CONCURRENCY: _of_slots,
    LimitKind.BUDGET: _of_budget,
}


def _who(claim: Claim) -> str:
    return f"tenant {claim.tenant!r}" if claim.tenant else "everybody without a tenant"


def _when(denied: Denied) -> str:
    """Never less than a millisecond, so that the text and `retry-after-ms` agree."""
    return f" Try again in {duration(max(0.001, denied.retry_after_s or 0.0))}."


def _money(micros: int, currency: str) -> str:
    whole, part = divmod(micros, MICROS)
    cents = f"{part:06}".rstrip("0").ljust(2, "0")
    return f"{whole}.{cents} {currency}".strip()
