"""What journeys are counted in where nothing was set up: no limits, no ledger, no prices."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headway.core.messages.record import RequestRecord
from headway.core.tenancy.limits import Claim, Denied, Granted


class NoLimits:
    """Grants everything."""

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Granted."""
        return Granted()

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Granted."""
        return Granted()

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Nothing was taken."""

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Nothing is held."""


class NoLedger:
    """Keeps nothing."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[RequestRecord]] = set()

    def opened(self, record: RequestRecord) -> None:
        """Not kept."""

    def giving(self, request_id: str, num_tokens: int) -> None:
        """Not kept."""

    def gave(self, request_id: str, num_tokens: int, num_unsent: Callable[[], int]) -> None:
        """Not kept."""

    def closed(self, record: RequestRecord, num_unsent: Callable[[], int]) -> None:
        """Not kept."""

    def closes(self, rest: Callable[[], Coroutine[Any, Any, RequestRecord]]) -> None:
        """Not kept, but its limits are settled on the way."""
        task = asyncio.get_running_loop().create_task(rest())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class NoPrices:
    """Everything is free."""

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """0."""
        return 0
