"""Whether a client that promised to beat is still there.

A client that names its connection has to beat about every five seconds; after a longer silence
its request is ended as if the connection had been closed. Proxies keep connections open whose
clients are long gone, so that a closed socket alone does not tell.
"""

from headway.core.base.errors import InvalidRequest
from headway.core.base.units import Seconds

Name = tuple[str, str]  # whose it is: tenant and key; and the client's name for it

MAX_CONNECTIONS = 100_000  # a bound on memory, not a limit that anybody should meet


class Heartbeats:
    """The last beat of every watched connection; names of different callers never meet."""

    def __init__(self, timeout: Seconds) -> None:
        self.timeout = timeout
        self._last: dict[tuple[str, str, str], Seconds] = {}

    def __len__(self) -> int:
        return len(self._last)

    def open(self, owner: Name, name: str, now: Seconds) -> None:
        """Watch it from now on; raises InvalidRequest when its owner uses the name already."""
        key = (*owner, name)
        if key in self._last:
            raise InvalidRequest(
                f"the connection id {name!r} is in use by another request; choose a new one for "
                f"each",
                param="x-headway-connection-id",
            )
        if len(self._last) >= MAX_CONNECTIONS:
            raise InvalidRequest("too many connections are watched; send the request without an id")
        self._last[key] = now

    def beat(self, owner: Name, name: str, now: Seconds) -> bool:
        """The client is there; False when its owner has no such connection."""
        key = (*owner, name)
        if key not in self._last:
            return False
        self._last[key] = now
        return True

    def left(self, owner: Name, name: str, now: Seconds) -> Seconds:
        """Until it counts as gone; 0 or less: it does."""
        return Seconds(self._last[(*owner, name)] + self.timeout - now)

    def close(self, owner: Name, name: str) -> None:
        """Its request has ended; harmless when it is not watched."""
        self._last.pop((*owner, name), None)
