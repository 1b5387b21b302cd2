"""The Redis that sentinels name, followed from one primary to the next."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from headway.service.store.redis_url import Address

log = logging.getLogger(__name__)

PRIMARY = "master"  # as Redis calls it


class SentinelNodes:
    """One node: the primary of the moment, behind the calls of `RedisNodes`.

    All sentinels are asked at once, and the first Redis that one of them names and that says
    itself that it is a primary is taken: a sentinel may be gone, or be cut off and name an old one.
    """

    def __init__(
        self,
        make: Callable[[Address], Redis],
        sentinels: Sequence[Redis],
        service: str,
        timeout_s: float,
    ) -> None:
        """`timeout_s` is for finding the primary, however many do not answer."""
        self._make = make
        self._sentinels = sentinels
        self._service = service
        self._timeout_s = timeout_s
        self._clients: dict[Address, Redis] = {}
        self._primary: Redis | None = None  # None: to be found
        self._finding: asyncio.Task[Redis] | None = None

    async def of(self, key: str) -> Redis:
        """The primary; raises RedisError or OSError where none is found."""
        if self._primary is None:
            if self._finding is None:  # one search, whoever waits for it
                self._finding = asyncio.ensure_future(self._find())
                self._finding.add_done_callback(self._found)
            return await asyncio.shield(self._finding)
        return self._primary

    def moved(self, error: RedisError) -> None:
        """A Redis behind sentinels is no cluster: it is looked for again."""
        self._primary = None

    def failed(self, key: str) -> None:
        """It does not answer, or is a primary no more."""
        self._primary = None

    async def check_whole(self) -> None:
        """It is one node."""

    async def close(self) -> None:
        """Close all connections."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait((self._finding,))
        for client in (*self._clients.values(), *self._sentinels):
            await client.aclose()
            await client.connection_pool.disconnect()

    def _found(self, task: asyncio.Task[Redis]) -> None:
        self._finding = None
        if not task.cancelled():
            task.exception()  # those who waited were told, if any are left

    async def _find(self) -> Redis:
        asked = [asyncio.ensure_future(self._named_by(each)) for each in self._sentinels]
        problem: Exception = RedisConnectionError("no sentinel was named")
        try:
            async with asyncio.timeout(self._timeout_s):
                for answer in asyncio.as_completed(asked):
                    try:
                        address = await answer
                    except (RedisError, OSError) as error:
                        problem = error
                        continue
                    self._primary = await self._taken(address)
                    return self._primary
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise RedisConnectionError(f"no sentinel names a primary that is one: {problem}")

    async def _named_by(self, sentinel: Redis) -> Address:
        """Where it says that the primary is, which says so too."""
        named: Any = await sentinel.sentinel_get_master_addr_by_name(self._service)
        if named is None:
            raise RedisConnectionError(f"a sentinel knows no service {self._service!r}")
        host, port = named
        address = (host.decode() if isinstance(host, bytes) else str(host), int(port))
        if address not in self._clients:
            self._clients[address] = self._make(address)
        role = (await self._clients[address].role())[0]
        if (role.decode() if isinstance(role, bytes) else role) != PRIMARY:
            raise RedisConnectionError("a sentinel names a Redis that is a replica")
        return address

    async def _taken(self, address: Address) -> Redis:
        """The client of that one, and of no other."""
        for other in [each for each in self._clients if each != address]:
            await self._clients.pop(other).connection_pool.disconnect(inuse_connections=False)
        log.info("limit_store_node_found", extra={"node": f"{address[0]}:{address[1]}"})
        return self._clients[address]
