"""What several replicas tell together: one hello, one status, one state."""

from collections.abc import Sequence

import msgspec

from headway.core.messages.health import ReplicaHello, ReplicaStatus
from headway.service.wire.transport import MemberView, ReplicaState, ReplicaView

# Of these a sum would say nothing: the worst, and the best that a newcomer could have.
MOST = ("rung", "last_step_rows")
LEAST = ("best_effort_wait_s",)
BY_CLASS = ("waiting_by_class", "swapped_by_class", "recomputed_by_class")
SUMMED = tuple(
    name for name in ReplicaStatus.__struct_fields__ if name not in (*MOST, *LEAST, *BY_CLASS)
)
# In this order: what one of them is, all are.
BEST_FIRST = (
    ReplicaState.READY,
    ReplicaState.STALLED,
    ReplicaState.STARTING,
    ReplicaState.FAILED,
    ReplicaState.STOPPED,
)


def joint_status(statuses: Sequence[ReplicaStatus]) -> ReplicaStatus:
    """Gauges and totals of all; there is at least one."""
    if len(statuses) == 1:
        return statuses[0]
    values: dict[str, object] = {
        name: sum(getattr(each, name) for each in statuses) for name in SUMMED
    }
    values |= {name: max(getattr(each, name) for each in statuses) for name in MOST}
    values |= {name: min(getattr(each, name) for each in statuses) for name in LEAST}
    for name in BY_CLASS:
        known = [counts for each in statuses if (counts := getattr(each, name))]
        values[name] = tuple(map(sum, zip(*known, strict=True)))
    return msgspec.convert(values, ReplicaStatus)


def joint_hello(hellos: Sequence[ReplicaHello], status: ReplicaStatus) -> ReplicaHello:
    """What all can do, and have: a request may go to any of them."""
    return msgspec.structs.replace(
        hellos[0],
        executor=hellos[0].executor
        if len(hellos) == 1
        else f"{len(hellos)} x {hellos[0].executor}",
        max_model_len=min(each.max_model_len for each in hellos),
        num_blocks=sum(each.num_blocks for each in hellos),
        max_num_seqs=sum(each.max_num_seqs for each in hellos),
        weight_bytes=sum(each.weight_bytes for each in hellos),
        load_s=max(each.load_s for each in hellos),
        status=status,
    )


def joint_view(members: Sequence[MemberView], *, has_loaded: bool) -> ReplicaView:
    """The best state of any; but until all have loaded for the first time, they are starting."""
    views = [each.view for each in members]
    speaker = _speaker(members, has_loaded=has_loaded)
    statuses = [view.status for view in views if view.status is not None]
    hellos = [view.hello for view in views if view.hello is not None]
    status = joint_status(statuses) if statuses else None
    state = speaker.view.state
    if not has_loaded and state is ReplicaState.READY:
        state = ReplicaState.STARTING
    return ReplicaView(
        state=state,
        reason=_reason(members, speaker, state),
        since_s=_since(views, state, speaker.view),
        restarts=sum(view.restarts for view in views),
        retry_after_s=min(view.retry_after_s for view in views),
        hello=joint_hello(hellos, status) if hellos and status is not None else None,
        status=status,
        members=tuple(members),
    )


def _speaker(members: Sequence[MemberView], *, has_loaded: bool) -> MemberView:
    """The one whose state is that of all: while they load for the first time, the worst."""
    order = BEST_FIRST if has_loaded else (ReplicaState.FAILED, ReplicaState.STARTING)
    for state in order:
        for each in members:
            if each.view.state is state:
                return each
    return members[0]


def _reason(members: Sequence[MemberView], speaker: MemberView, state: ReplicaState) -> str:
    if state is not ReplicaState.READY:
        return f"replica {speaker.id}: {speaker.view.reason}"
    away = [each for each in members if each.view.state is not ReplicaState.READY]
    if not away:
        return speaker.view.reason
    told = "; ".join(f"replica {each.id}: {each.view.reason}" for each in away)
    return f"{len(members) - len(away)} of {len(members)} replicas are ready; {told}"


def _since(views: Sequence[ReplicaView], state: ReplicaState, speaker: ReplicaView) -> float:
    """All are stalled only since the last one is; any is ready since the first one was."""
    times = [view.since_s for view in views if view.state is state]
    if not times:
        return speaker.since_s
    return max(times) if state is ReplicaState.READY else min(times)
