"""One server of a pool: what is known of it, and a place at it for one request."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headway.core.base.units import Seconds
from headway.core.route.breaker import Breaker, BreakerSettings
from headway.core.route.upstream_choice import Candidate
from headway.service.upstream.http1 import HttpClient
from headway.service.upstream.settings import Endpoint
from headway.service.upstream.told import Told

FAILED_PROBES = 2  # in a row, after which a server counts as gone
MOST_COOLING_S = 60.0  # then it is asked again, whatever it said


class UpstreamReplica:
    """State that probes and results write, and the choice of a replica reads."""

    def __init__(self, endpoint: Endpoint, client: HttpClient, breaker: BreakerSettings) -> None:
        self.endpoint = endpoint
        self.client = client
        self.breaker = Breaker(breaker)
        self.told: Told | None = None
        self.is_healthy: bool | None = None  # None: no probe has ended yet
        self.reason = "not asked yet"
        self.context_length: int | None = None  # as it told, where it tells
        self.was_probed = asyncio.Event()
        self._failed_probes = 0
        self._others = 0  # requests that it had of others when it last told
        self._leases: set[Lease] = set()
        self._cold_until = Seconds(0.0)

    @property
    def label(self) -> str:
        """host:port."""
        return self.endpoint.label

    @property
    def in_flight(self) -> int:
        """Requests that this gateway has there."""
        return len(self._leases)

    def is_routable(self, now: Seconds) -> bool:
        """Whether it may be sent anything."""
        return self.is_healthy is not False and not self.breaker.is_ejected(now)

    def cool(self, seconds: float, now: Seconds) -> None:
        """It said that it takes nothing for so long."""
        until = now + min(seconds, MOST_COOLING_S)
        self._cold_until = Seconds(max(self._cold_until, until))

    def cold_s(self, now: Seconds) -> float:
        """Seconds for which it still takes nothing."""
        return max(0.0, self._cold_until - now)

    def candidate(self) -> Candidate:
        """As the choice sees it."""
        usage = self.told.kv_usage if self.told is not None else 0.0
        return Candidate(self.label, self.in_flight, self._others, usage)

    def heard(self, told: Told | None) -> None:
        """Its metrics were read."""
        self.told = told
        total = 0 if told is None else round(told.running + told.waiting)
        self._others = max(0, total - self.in_flight)

    def probed(self, problem: str, now: Seconds) -> bool:
        """A probe has ended, with a problem or with ""; whether its health changed."""
        before = self.is_healthy
        self.was_probed.set()
        if not problem:
            self._failed_probes = 0
            self.is_healthy, self.reason = True, "ready"
            if before is False:
                self.breaker.restarted(now)
        else:
            self._failed_probes += 1
            self.reason = problem
            if before is not True or self._failed_probes >= FAILED_PROBES:
                self.is_healthy = False
        if before is not False and self.is_healthy is False:
            self.told, self._others = None, 0
            for lease in list(self._leases):
                lease.hurry()
        return before != self.is_healthy

    def gone(self, reason: str) -> None:
        """It is known to be away, without a probe: its process has ended."""
        self._failed_probes = FAILED_PROBES
        self.probed(reason, Seconds(0.0))

    def enter(self, lease: "Lease") -> None:
        """A request goes there."""
        self._leases.add(lease)

    def leave(self, lease: "Lease") -> None:
        """It has ended there; harmless when it had before."""
        self._leases.discard(lease)


class Lease:
    """A place at a replica for one request; a context manager."""

    def __init__(self, replica: UpstreamReplica, left: Callable[["Lease"], None]) -> None:
        self.replica = replica
        self.num_tokens = 0  # of its answer, once that is known
        self._left = left
        self._timer: asyncio.Timeout | None = None

    def watch(self, timer: asyncio.Timeout | None) -> None:
        """End this wait should the replica go away meanwhile; None: it has brought something."""
        self._timer = timer

    def hurry(self) -> None:
        """The replica is gone: do not wait for what will not come."""
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())

    def __enter__(self) -> Self:
        self.replica.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.replica.leave(self)
        self._left(self)
