"""The nodes of a Redis Cluster as they make themselves known; a single Redis is one node.

A call goes to the node that is taken to have its slot. A node that has it not says which one does,
and that is remembered: nothing is asked of a cluster that the calls themselves do not tell. (The
library's own cluster client gives up connections under calls that use them, when many are made.)
"""

import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, MovedError

from headway.service.store.redis_url import Address

log = logging.getLogger(__name__)

Make = Callable[[Address | None], Redis]  # None: where the URL says
SEED = None


class RedisNodes:
    """A client of each node that is known; connections are made when they are first used."""

    def __init__(self, make: Make, seed_host: str) -> None:
        """`seed_host` is what a node means that leaves its host out."""
        self._make = make
        self._seed_host = seed_host
        self._clients: dict[Address | None, Redis] = {SEED: make(SEED)}
        self._slots: dict[int, Address] = {}
        self._first: Address | None = SEED  # for slots of which nothing is known

    async def of(self, key: str) -> Redis:
        """The node to ask for what has this key."""
        return self._clients[self._where(key)]

    def moved(self, error: MovedError) -> None:
        """A node has said who has a slot."""
        address = (error.host or self._seed_host, error.port)
        self._client(address)
        self._slots[error.slot_id] = address

    def failed(self, key: str) -> None:
        """The node that was asked for this key does not answer: another one may know more."""
        failed = self._where(key)
        self._slots.pop(key_slot(key.encode()), None)
        others = [each for each in self._clients if each != failed]
        if others:
            place = list(self._clients).index(failed)
            self._first = others[place % len(others)]

    async def check_whole(self) -> None:
        """Ask each node that has slots how the cluster is; raises RedisError. One Redis has none.

        Who has slots is asked of a node, as nodes may have left the cluster meanwhile.
        """
        if not self._slots:
            return
        for _, _, (host, port, *_), *_ in await self._clients[self._first].cluster("slots"):
            told = await self._client((host.decode() or self._seed_host, port)).cluster("info")
            if told["cluster_state"] != "ok":
                raise ClusterDownError("a node says that slots of the cluster are nobody's")

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
            await client.connection_pool.disconnect()

    def _client(self, address: Address) -> Redis:
        if address not in self._clients:
            log.info("limit_store_node_found", extra={"node": f"{address[0]}:{address[1]}"})
            self._clients[address] = self._make(address)
        return self._clients[address]

    def _where(self, key: str) -> Address | None:
        if not self._slots:  # no cluster, as far as is known
            return self._first
        return self._slots.get(key_slot(key.encode()), self._first)
