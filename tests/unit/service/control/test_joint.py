import msgspec

from headway.service.control.joint import joint_status, joint_view
from headway.service.wire.transport import MemberView, ReplicaState, ReplicaView
from tests.unit.service.gateway.fakes import HELLO, STATUS


def member(name: str, state: ReplicaState, since_s: float = 1.0, reason: str = "why") -> MemberView:
    is_up = state in (ReplicaState.READY, ReplicaState.STALLED)
    view = ReplicaView(
        state=state,
        reason=reason,
        since_s=since_s,
        restarts=2,
        retry_after_s=float(name) + 3.0,
        hello=msgspec.structs.replace(HELLO, max_model_len=100 - int(name)) if is_up else None,
        status=msgspec.structs.replace(STATUS, num_running=int(name) + 1) if is_up else None,
    )
    return MemberView(id=name, view=view, in_flight=0, work_s=0.0, is_ejected=False)


READY, STALLED, STARTING = ReplicaState.READY, ReplicaState.STALLED, ReplicaState.STARTING
FAILED, STOPPED = ReplicaState.FAILED, ReplicaState.STOPPED


def test_gauges_and_totals_are_summed_and_the_rung_is_the_worst() -> None:
    one = msgspec.structs.replace(
        STATUS, num_running=1, num_steps=5, rung=2, waiting_by_class=(1, 2, 3)
    )
    two = msgspec.structs.replace(
        STATUS, num_running=2, num_steps=7, best_effort_wait_s=4.0, waiting_by_class=(1, 0, 1)
    )
    both = joint_status([one, two])
    assert (both.num_running, both.num_steps, both.rung) == (3, 12, 2)
    assert both.waiting_by_class == (2, 2, 4)
    assert both.best_effort_wait_s == 0.0
    assert both.total_blocks == 2 * STATUS.total_blocks


def test_all_are_as_well_as_the_best_of_them() -> None:
    for states, expected in (
        ((READY, READY), READY),
        ((STARTING, READY), READY),
        ((STARTING, STALLED), STALLED),
        ((STARTING, FAILED), STARTING),
        ((STOPPED, STOPPED), STOPPED),
    ):
        members = [member(str(number), state) for number, state in enumerate(states)]
        assert joint_view(members, has_loaded=True).state is expected


def test_what_is_not_ready_is_named() -> None:
    view = joint_view([member("0", READY), member("1", STARTING)], has_loaded=True)
    assert view.reason == "1 of 2 replicas are ready; replica 1: why"
    assert (view.restarts, view.retry_after_s) == (4, 3.0)
    assert view.hello is not None
    assert view.status is not None
    assert view.status.num_running == 1


def test_a_request_must_fit_every_replica() -> None:
    view = joint_view([member("0", READY), member("1", READY)], has_loaded=True)
    assert view.hello is not None
    assert view.hello.max_model_len == 99
    assert view.hello.num_blocks == 2 * HELLO.num_blocks


def test_until_all_have_loaded_they_are_starting() -> None:
    view = joint_view([member("0", READY), member("1", STARTING)], has_loaded=False)
    assert view.state is STARTING
    assert view.reason == "replica 1: why"
    both = joint_view([member("0", READY), member("1", READY)], has_loaded=False)
    assert both.state is STARTING
    failed = joint_view([member("0", READY), member("1", FAILED)], has_loaded=False)
    assert (failed.state, failed.reason) == (FAILED, "replica 1: why")


def test_all_are_stalled_since_the_last_one_is() -> None:
    members = [member("0", STALLED, 50.0), member("1", STALLED, 4.0)]
    assert joint_view(members, has_loaded=True).since_s == 4.0
    members = [member("0", READY, 50.0), member("1", READY, 4.0)]
    assert joint_view(members, has_loaded=True).since_s == 50.0
