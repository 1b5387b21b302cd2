"""Which claims are under way at this gateway, so that their leases are renewed."""

import asyncio
from collections.abc import Callable, Sequence

from headway.core.tenancy.limits import LEASE_S, Claim, Denied, Granted, LimitStore

RENEW_S = LEASE_S / 3  # so that one lost renewal ends no lease


class Underway:
    """A LimitStore over another one, which it reminds of the claims that have not ended."""

    def __init__(self, store: LimitStore, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._claims: dict[str, Claim] = {}

    async def run(self) -> None:
        """Renew for ever; cancelled at the process's end."""
        while True:
            await self._store.renew(tuple(self._claims.values()), self._wall_clock())
            await asyncio.sleep(RENEW_S)

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """As the store does."""
        return self._noted(claim, await self._store.enter(claim, now))

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """As the store does."""
        return self._noted(claim, await self._store.reserve(claim, now))

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """As the store does."""
        self._claims.pop(claim.id, None)
        await self._store.settle(claim, tokens, cost, now)

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """As the store does."""
        await self._store.renew(claims, now)

    def _noted(self, claim: Claim, answer: Granted | Denied) -> Granted | Denied:
        if isinstance(answer, Denied):
            self._claims.pop(claim.id, None)
        else:
            self._claims[claim.id] = claim
        return answer
