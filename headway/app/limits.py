"""Where tenants' limits are counted: in this process, or in Redis with the other gateways."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headway.core.base.errors import InvalidRequest, InvalidSetting, StoreUnavailable
from headway.core.messages.record import RequestRecord
from headway.core.messages.usage import UsageQuery
from headway.core.tenancy.budget import month_of
from headway.core.tenancy.limits import UNLIMITED, Claim
from headway.core.tenancy.memory_limits import MemoryLimits, to_ms
from headway.service.gateway.journey import Books, Ledger, Pricing
from headway.service.gateway.ledger import Keeper
from headway.service.gateway.limit_answers import LimitRules
from headway.service.gateway.limit_counts import SharedState
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.underway import Underway

if TYPE_CHECKING:
    from headway.service.store.shared_limits import SharedLimits


log = logging.getLogger(__name__)


class TenantLimits:
    """The store of one gateway process, with its one background task."""

    def __init__(self, settings: RateLimitSettings, gateway: str) -> None:
        """`gateway` names this process to the others. Raises InvalidSetting."""
        self._gateway = gateway
        self.table = LimitTable(settings)
        self._shared: SharedLimits | None = None
        if settings.redis_url is not None:
            self._shared = _shared(settings, settings.redis_url, gateway, self.recall_again)
        self._counts = self._shared or MemoryLimits()
        self._keeper: Keeper | None = None
        self.store = Underway(self._counts, time.time)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def state(self) -> SharedState | None:
        """Of what is shared; None where nothing is."""
        return self._shared

    def books(self, ledger: Ledger, pricing: Pricing, currency: str) -> Books:
        """What the gateway's journeys are counted in, these limits among it."""
        rules = LimitRules(currency=currency)
        return Books(self.store, ledger, pricing, time.time, self._gateway, rules)

    def start(self) -> None:
        """Keep the leases of what is under way, from here on."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self.store.run())

    def on_lost(self, record: RequestRecord) -> None:
        """Settle what a gateway that died had under way; for any thread, after `start`."""
        assert self._loop is not None
        claim = Claim(id=record.id, tenant=record.tenant, limits=UNLIMITED)
        used = record.prompt_tokens + record.completion_tokens
        settled = self.store.settle(claim, used, record.cost, time.time())
        asyncio.run_coroutine_threadsafe(settled, self._loop)

    def remember_by(self, keeper: Keeper | None) -> None:
        """That ledger knows what was spent; None: nobody does."""
        self._keeper = keeper

    async def recall(self, keeper: Keeper | None) -> None:
        """Count at least what the ledger knows was spent this month: counts may have been lost."""
        self.remember_by(keeper)
        if keeper is None:
            return
        now = time.time()
        query = UsageQuery(group_by=("tenant",), since=month_of(to_ms(now))[0] / 1000)
        try:
            rows = await keeper.ask(lambda records: records.usage(query))
        except (StoreUnavailable, InvalidRequest) as error:  # away, or more tenants than rows
            log.warning("spent_not_recalled", extra={"error": error.message})
            return
        for row in rows:
            if row.cost:
                await self._counts.spent_at_least(row.group[0], row.cost, now)

    async def close(self) -> None:
        """End what `start` began, and leave the store."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._shared is not None:
            await self._shared.close()

    async def recall_again(self) -> None:
        """The same, where counts may have been lost, or a budget is new.

        What a tenant spends while it has no budget is in the ledger alone.
        """
        await self.recall(self._keeper)


def check_installed(settings: RateLimitSettings) -> None:
    """Raise InvalidSetting where limits are to be in Redis, and its client is not there."""
    if settings.redis_url is not None and find_spec("redis") is None:
        raise InvalidSetting(
            "--redis-url", "needs Redis's client; install it with: pip install 'headway[redis]'"
        )


def _shared(
    settings: RateLimitSettings, url: str, gateway: str, on_back: Callable[[], Awaitable[None]]
) -> "SharedLimits":
    """Imported only here: a server without Redis has no use for its client's 10 MB."""
    check_installed(settings)
    from headway.service.store.redis_limits import RedisLimits, RedisSettings
    from headway.service.store.shared_limits import SharedLimits

    redis = RedisSettings(url=url, prefix=settings.redis_prefix, timeout_s=settings.redis_timeout)
    store = RedisLimits(redis)
    return SharedLimits(store, gateway, share=settings.outage_share, on_back=on_back)
