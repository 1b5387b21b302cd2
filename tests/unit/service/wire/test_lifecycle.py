import pytest

from headway.core.base.units import Seconds
from headway.service.wire.lifecycle import NEXT, Lifecycle
from headway.service.wire.transport import ReplicaState


def at(state: ReplicaState) -> Lifecycle:
    lifecycle = Lifecycle("test", Seconds(0.0))
    lifecycle.state = state
    return lifecycle


@pytest.mark.parametrize("source", ReplicaState)
@pytest.mark.parametrize("target", ReplicaState)
def test_a_move_is_made_if_it_is_in_the_table_and_refused_by_name_if_not(
    source: ReplicaState, target: ReplicaState
) -> None:
    lifecycle = at(source)
    if target in NEXT[source]:
        lifecycle.move(target, "because", Seconds(5.0))
        assert (lifecycle.state, lifecycle.reason, lifecycle.since) == (target, "because", 5.0)
    else:
        with pytest.raises(AssertionError, match=f"{source.name} -> {target.name}"):
            lifecycle.move(target, "because", Seconds(5.0))
        assert lifecycle.state is source


def test_every_state_can_be_stopped_and_nothing_leaves_stopped() -> None:
    for state in ReplicaState:
        assert (ReplicaState.STOPPED in NEXT[state]) == (state is not ReplicaState.STOPPED)
    assert NEXT[ReplicaState.STOPPED] == frozenset()


def test_a_better_reason_does_not_restart_the_time_in_a_state() -> None:
    lifecycle = Lifecycle("loading", Seconds(3.0))
    lifecycle.explain("loading weights 40 %")
    assert (lifecycle.reason, lifecycle.since) == ("loading weights 40 %", 3.0)
