"""The states of a replica, as its server sees them, and the moves between them."""

from collections.abc import Mapping

from headway.core.base.units import Seconds
from headway.service.wire.transport import ReplicaState

NEXT: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.STARTING: frozenset(
        {ReplicaState.READY, ReplicaState.FAILED, ReplicaState.STOPPED}
    ),
    ReplicaState.READY: frozenset(
        {
            ReplicaState.STALLED,
            ReplicaState.STARTING,
            ReplicaState.FAILED,  # it died and nobody can start it again
            ReplicaState.STOPPED,
        }
    ),
    ReplicaState.STALLED: frozenset(
        {ReplicaState.READY, ReplicaState.STARTING, ReplicaState.FAILED, ReplicaState.STOPPED}
    ),
    ReplicaState.FAILED: frozenset({ReplicaState.STOPPED}),
    ReplicaState.STOPPED: frozenset(),
    # Of a pool that has no process, or is about to have none.
    ReplicaState.UNLOADED: frozenset({ReplicaState.STARTING, ReplicaState.STOPPED}),
    ReplicaState.UNLOADING: frozenset({ReplicaState.UNLOADED, ReplicaState.STOPPED}),
}


class Lifecycle:
    """One replica's state, why it is in it and since when."""

    __slots__ = ("reason", "since", "state")

    def __init__(self, reason: str, now: Seconds) -> None:
        self.state = ReplicaState.STARTING
        self.reason = reason
        self.since = now

    def move(self, to: ReplicaState, reason: str, now: Seconds) -> None:
        """Enter another state; an illegal move is a bug and fails loudly."""
        assert to in NEXT[self.state], f"replica: {self.state.name} -> {to.name}"
        self.state = to
        self.reason = reason
        self.since = now

    def explain(self, reason: str) -> None:
        """Say more exactly why it is in the state it is in."""
        self.reason = reason
