"""The seam between whoever serves clients and the replica that computes."""

from enum import Enum
from typing import Protocol

import msgspec

from headway.core.base.errors import ReplicaNotReady
from headway.core.base.units import Seconds
from headway.core.fleet.residency import Residency
from headway.core.messages.health import ReplicaHello, ReplicaStatus
from headway.core.messages.path import EngineRequest, Event
from headway.core.route.router import RouteCounts


class ReplicaState(Enum):
    """Whether a replica can answer now. Health is progress, not an open port."""

    STARTING = "starting"  # loading for the first time, or again after a death
    READY = "ready"
    STALLED = "stalled"  # alive, but work is pending and no step completes
    STOPPED = "stopped"  # ended on purpose
    FAILED = "failed"  # could not start; a restart cannot help
    UNLOADED = "unloaded"  # its pool has no process for it; the next request starts one
    UNLOADING = "unloading"  # its pool is about to end it, once nothing runs


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as its server sees it at this moment."""

    state: ReplicaState
    reason: str  # one line for people: "loading weights 40 %", "no step for 12.3 s", ...
    since_s: float  # seconds in this state
    restarts: int
    retry_after_s: float  # what to tell a client that is refused now
    hello: ReplicaHello | None  # of the running process; None until it has loaded
    status: ReplicaStatus | None  # the latest
    loads: int = 0  # of its pool; with `restarts` it tells one process from the next
    on_demand: bool = False  # loaded when a request needs it, which waits for that
    members: tuple["MemberView", ...] = ()  # its replicas, where there are several
    routed: RouteCounts | None = None  # how requests were spread over them

    def refusal(self) -> ReplicaNotReady:
        """What a request is told that needs it now and cannot have it."""
        return ReplicaNotReady(
            f"the engine is not ready: {self.reason}", Seconds(self.retry_after_s)
        )


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several replicas, and what its pool knows of it."""

    id: str  # "0", "1", ...
    view: ReplicaView
    in_flight: int  # requests that were sent to it and have not ended there
    work_s: float  # that it has before it, as far as known
    is_ejected: bool  # it failed requests, and gets none for a while


class Mailbox(Protocol):
    """Events of one request, in order, read by one asyncio task.

    A reader that falls behind finds `Tokens` of the same choice merged into one event, so
    that the mailbox never holds more than one event a choice beside Started and Finished.
    """

    async def get(self) -> Event:
        """The next event; `Finished` is the last.

        Raises ReplicaLost when the replica died, also if that was before this call.
        """
        ...


class Transport(Protocol):
    """One replica, as its gateway uses it. All methods run on the event loop's thread."""

    def view(self) -> ReplicaView:
        """What is known now; never blocks."""
        ...

    def call(self, request: EngineRequest) -> Mailbox:
        """Send a request; raises ReplicaNotReady when there is no running replica."""
        ...

    def cancel(self, request_id: str) -> None:
        """Nobody reads the mailbox any more; the replica frees the request's blocks.

        Harmless for a request that has ended or is not known.
        """
        ...


class Pool(Transport, Protocol):
    """The replicas of one model, and whether any of them is loaded.

    With one replica it is that replica, loaded and unloaded as its settings say.
    """

    async def hold(self, request_id: str, budget_s: float | None) -> float:
        """Wait until the model can answer, and have it stay loaded until `release`.

        Gives the seconds that took, exactly 0 where there was nothing to wait for.

        budget_s  what is left until the request's first token is due; None: nothing promised

        Raises ReplicaNotReady when that takes too long or cannot be. `release` is due also then.
        """
        ...

    def release(self, request_id: str) -> None:
        """The request has ended; harmless when it holds nothing."""
        ...

    def residency(self) -> Residency:
        """Where the model is between disk and memory, to look at."""
        ...
