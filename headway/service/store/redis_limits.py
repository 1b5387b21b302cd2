"""Limits counted in Redis, exactly, by all gateways that use it.

Every call is one script and one round trip; Redis's own clock is used, so the gateways' clocks
need not agree. A call that met a broken connection or a time-out is made once more (calls may be
repeated), then raises StoreUnavailable: what to do then is `shared_limits`' to choose. Every key
has an end of life, and those of one tenant share a hash tag: all keys of a call are in one slot of
a Redis Cluster.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headway.core.base.errors import InvalidSetting, StoreUnavailable
from headway.core.base.units import Seconds
from headway.core.tenancy.budget import month_starts
from headway.core.tenancy.limits import Claim, Denied, Granted, LimitKind, Standing
from headway.core.tenancy.memory_limits import to_ms
from headway.service.store.limit_scripts import (
    ANNOUNCE,
    AT_LEAST,
    ENTER,
    RENEW,
    RESERVE,
    SETTLE,
    SPEND,
    Script,
)
from headway.service.store.redis_nodes import RedisNodes
from headway.service.store.redis_sentinel import SentinelNodes
from headway.service.store.redis_url import Address, sentinels_of

KINDS = (None, LimitKind.REQUESTS, LimitKind.TOKENS, LimitKind.CONCURRENCY, LimitKind.BUDGET)
LIMIT_OF = {
    LimitKind.REQUESTS: "requests_per_minute",
    LimitKind.TOKENS: "tokens_per_minute",
    LimitKind.CONCURRENCY: "concurrent_requests",
    LimitKind.BUDGET: "monthly_budget",
}
POOL_WAIT_S = 5.0
ELSEWHERE = (OSError, RedisConnectionError, RedisTimeoutError, ReadOnlyError)
MOST_MOVES = 3  # of one call, from one node of a cluster to the next
RETRY_S = Seconds(1.0)
Argument = str | int


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is, and how patient to be with it."""

    url: str  # as `redis_url` has them
    prefix: str = "headway"  # of every key, so that several services can share one Redis
    timeout_s: float = 1.0  # of one try of a call
    max_connections: int = 32


class RedisLimits:
    """A LimitStore in Redis that raises StoreUnavailable while it is away."""

    def __init__(self, settings: RedisSettings, *, use_server_time: bool = True) -> None:
        """Connects when first used. Raises InvalidSetting for a URL that is none.

        Only tests turn `use_server_time` off: then `now` is the time.
        """
        try:
            self._nodes = _nodes(settings)
        except ValueError as error:
            # The URL may hold a password, so the message does not repeat it.
            raise InvalidSetting("redis_url", f"is no URL of a Redis: {error}") from None
        self.max_connections = settings.max_connections
        self._prefix = settings.prefix
        self._use_server_time = use_server_time

    async def enter(self, claim: Claim, now: float) -> Granted | Denied:
        """Count one request and take one slot, or neither."""
        return (await self.asked(ENTER, claim, now))[0]

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Take tokens and cost for a claim that has entered; denied, it has left."""
        return (await self.asked(RESERVE, claim, now))[0]

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Give back its slot and what it did not use."""
        await self.settled(claim, tokens, cost, now)

    async def renew(self, claims: Sequence[Claim], now: float) -> None:
        """Their slots are theirs for another LEASE_S; one call a tenant."""
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for claim in claims:
            if claim.limits.concurrent_requests is not None:
                by_tenant[claim.tenant].append(claim.id)
        for tenant, ids in by_tenant.items():
            keys = [self._key(tenant, "slots"), *(self._key(tenant, f"claim:{id_}") for id_ in ids)]
            await self._run(RENEW, keys, [self._time(now), *ids])

    async def asked(self, script: Script, claim: Claim, now: float) -> tuple[Granted | Denied, int]:
        """The answer of `enter` or `reserve`, and the micros spent or reserved this month."""
        limits = claim.limits
        of_limits = [
            "" if value is None else value
            for value in (
                limits.requests_per_minute,
                limits.tokens_per_minute,
                limits.concurrent_requests,
                limits.monthly_budget,
            )
        ]
        found = await self._run(
            script,
            self._keys(claim),
            [
                *(self._time(now), *of_limits, claim.id, claim.tokens, claim.cost),
                *month_starts(to_ms(now)),
            ],
        )
        return _answer(claim, found), int(found[6])

    async def settled(self, claim: Claim, tokens: int, cost: int, now: float) -> bool:
        """As `settle`; whether the claim had reserved here, and so its cost is counted."""
        months = month_starts(to_ms(now))
        limit = claim.limits.tokens_per_minute
        arguments = [
            *(self._time(now), claim.id, tokens, cost, *months),
            "" if limit is None else limit,
        ]
        return bool(await self._run(SETTLE, self._keys(claim), arguments))

    async def spend(self, tenant: str, micros: int, now: float) -> None:
        """Count what was spent without a claim, in the month of now."""
        await self._spending(SPEND, tenant, micros, now)

    async def spent_at_least(self, tenant: str, micros: int, now: float) -> None:
        """So much is known to have been spent in the month of now."""
        await self._spending(AT_LEAST, tenant, micros, now)

    async def spent(self, tenant: str, now: float) -> int:
        """Micros spent or reserved in the month of now."""
        return await self._spending(SPEND, tenant, 0, now)

    async def announce(self, gateway: str, now: float) -> int:
        """This gateway is here; how many have said so within LEASE_S."""
        key = f"{self._prefix}:gateways"
        return int(await self._run(ANNOUNCE, [key], [self._time(now), gateway]))

    async def check_whole(self) -> None:
        """Raises StoreUnavailable while a node of a cluster that has slots does not answer."""
        try:
            await self._nodes.check_whole()
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._nodes.close()

    async def _spending(self, script: Script, tenant: str, micros: int, now: float) -> int:
        arguments = [self._time(now), micros, *month_starts(to_ms(now))]
        return int(await self._run(script, [self._key(tenant, "spent")], arguments))

    def _keys(self, claim: Claim) -> list[str]:
        parts = ("buckets", "slots", "spent", f"claim:{claim.id}")
        return [self._key(claim.tenant, part) for part in parts]

    def _key(self, tenant: str, part: str) -> str:
        """The letter keeps the tag of everybody, who has no name, from being empty."""
        return f"{self._prefix}:{{t:{tenant}}}:{part}"

    def _time(self, now: float) -> Argument:
        return "" if self._use_server_time else to_ms(now)

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """What the script returns; raises StoreUnavailable."""
        num_failures = num_moves = 0
        while True:
            try:
                return await self._try(script, keys, arguments)
            except MovedError as error:
                num_moves += 1
                if num_moves > MOST_MOVES:
                    raise StoreUnavailable(f"Redis moves its slots: {error}", RETRY_S) from error
                self._nodes.moved(error)
            except (RedisError, OSError) as error:
                num_failures += 1
                if not _is_of_the_node(error):
                    raise _unavailable(error) from error
                self._nodes.failed(keys[0])
                if num_failures > 1:
                    raise _unavailable(error) from error

    async def _try(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        node = await self._nodes.of(keys[0])
        try:
            return await node.evalsha(script.sha, len(keys), *keys, *arguments)
        except NoScriptError:  # Redis was started anew, or told to forget its scripts
            return await node.eval(script.text, len(keys), *keys, *arguments)


def _nodes(settings: RedisSettings) -> RedisNodes | SentinelNodes:
    """Those that the URL names; raises ValueError."""
    behind = sentinels_of(settings.url)
    of_url = {**parse_url(settings.url if behind is None else behind.own_url)}

    def make(address: Address | None) -> Redis:
        return _client(settings, of_url, address)

    if behind is None:
        return RedisNodes(make, str(of_url.get("host", "")))
    of_redis = ("username", "password", "db")
    of_sentinels = {name: value for name, value in of_url.items() if name not in of_redis}
    of_sentinels |= {"username": behind.username, "password": behind.password}
    sentinels = [_client(settings, of_sentinels, address) for address in behind.addresses]
    return SentinelNodes(make, sentinels, behind.service, settings.timeout_s)


def _client(settings: RedisSettings, of_url: dict[str, Any], address: Address | None) -> Redis:
    """Of one node, with all that the URL says beside its address."""
    own: dict[str, Any] = {}
    if address is not None:
        own["host"], own["port"] = address
    pool = BlockingConnectionPool(
        max_connections=settings.max_connections,
        timeout=POOL_WAIT_S,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name="headway",
        **{**of_url, **own},
    )
    return Redis.from_pool(pool)


def _is_of_the_node(error: Exception) -> bool:
    """Whether another node may do better: it does not answer, or is a primary no more.

    Some versions hide the second inside the error of the script that wanted to write.
    """
    return isinstance(error, ELSEWHERE) or "READONLY" in str(error)


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"Redis does not answer: {error}", RETRY_S)


def _answer(claim: Claim, found: Sequence[int]) -> Granted | Denied:
    refused, wait_ms, requests, requests_ms, tokens, tokens_ms, _ = found
    standing = Standing(
        remaining_requests=None if requests < 0 else requests,
        reset_requests_s=requests_ms / 1000,
        remaining_tokens=None if tokens < 0 else tokens,
        reset_tokens_s=tokens_ms / 1000,
    )
    kind = KINDS[refused]
    if kind is None:
        return Granted(standing=standing)
    return Denied(
        kind=kind,
        retry_after_s=None if wait_ms < 0 else wait_ms / 1000,
        limit=getattr(claim.limits, LIMIT_OF[kind]),
        standing=standing,
    )
