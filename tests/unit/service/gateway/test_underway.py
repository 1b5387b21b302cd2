"""Leases of what is under way are renewed, and of nothing else."""

import asyncio
from collections.abc import Sequence

from headway.core.tenancy.limits import LEASE_S, Claim, Limits
from headway.core.tenancy.memory_limits import MemoryLimits
from headway.service.gateway.underway import RENEW_S, Underway


class Renewed(MemoryLimits):
    """Notes whom it is reminded of."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[list[str]] = []

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Note them."""
        self.ids.append([claim.id for claim in claims])


def claim(name: str) -> Claim:
    limits = Limits(concurrent_requests=2, tokens_per_minute=10)
    return Claim(id=name, tenant="acme", limits=limits, tokens=11 if name == "large" else 1)


def test_only_claims_that_were_granted_and_have_not_ended_are_renewed() -> None:
    async def scenario() -> None:
        store = Renewed()
        underway = Underway(store, lambda: 1000.0)
        for name in ("a", "b", "third"):
            await underway.enter(claim(name), 1000.0)
        await underway.reserve(claim("a"), 1000.0)
        await underway.settle(claim("b"), 0, 0, 1000.0)
        await underway.enter(claim("large"), 1000.0)
        await underway.reserve(claim("large"), 1000.0)
        task = asyncio.create_task(underway.run())
        while not store.ids:
            await asyncio.sleep(0)
        task.cancel()
        assert store.ids == [["a"]]

    asyncio.run(scenario())


def test_a_lease_outlives_two_renewals() -> None:
    assert 2 * RENEW_S < LEASE_S
