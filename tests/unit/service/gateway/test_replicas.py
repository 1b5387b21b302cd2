"""What a gateway tells of a pool with several replicas."""

import msgspec
import pytest

from headway.core.base.units import Seconds
from headway.core.route.router import RouteCounts
from headway.service.gateway.totals import PoolTotals
from headway.service.wire.transport import MemberView, ReplicaState, ReplicaView
from tests.unit.service.gateway.fakes import STATUS, FakeReplica, run, site


class FakePool(FakeReplica):
    """Two replicas, of which the second one has died."""

    def view(self) -> ReplicaView:
        """As a ReplicaSet shows it."""
        seen = super().view()
        dead = msgspec.structs.replace(
            seen, state=ReplicaState.STARTING, reason="restarting", hello=None, status=None
        )
        views = (seen, msgspec.structs.replace(dead, restarts=3))
        members = tuple(
            MemberView(id=str(number), view=view, in_flight=4, work_s=1.5, is_ejected=False)
            for number, view in enumerate(views)
        )
        counts = RouteCounts(by_load=5, by_prefix=2, retried=1, continued=7, broken=0)
        return msgspec.structs.replace(seen, members=members, routed=counts, restarts=3)


def worked(tokens: int, restarts: int = 0) -> ReplicaView:
    replica = FakeReplica()
    replica.status = msgspec.structs.replace(STATUS, generated_tokens=tokens, num_steps=tokens)
    replica.restarts = restarts
    return replica.view()


def together(*views: ReplicaView) -> ReplicaView:
    members = tuple(
        MemberView(id=str(number), view=view, in_flight=0, work_s=0.0, is_ejected=False)
        for number, view in enumerate(views)
    )
    return msgspec.structs.replace(views[0], members=members)


def test_ready_and_health_name_every_replica() -> None:
    async def scenario() -> None:
        async with site(replica=FakePool()) as here:
            for path in ("/ready", "/health"):
                answer = await here.client.get(path)
                assert answer.status_code == 200
                told = answer.json()["replicas"]
                assert [each["replica"] for each in told] == ["0", "1"]
                assert [each["state"] for each in told] == ["ready", "starting"]
                assert told[1]["reason"] == "restarting"

    run(scenario())


@pytest.mark.spec("J1")
def test_metrics_tell_replicas_apart_by_their_engine_label() -> None:
    async def scenario() -> None:
        pool = FakePool()
        pool.status = msgspec.structs.replace(STATUS, num_running=3, num_steps=9)
        async with site(replica=pool, names=("m",)) as here:
            running = await here.metric("vllm:num_requests_running")
            assert running == {'{engine="0",model_name="m"}': 3}
            ready = await here.metric("headway_replica_ready")
            assert ready == {'{engine="0",model="m"}': 1, '{engine="1",model="m"}': 0}
            restarts = await here.metric("headway_replica_restarts_total")
            assert list(restarts.values()) == [0, 3]
            in_flight = await here.metric("headway_replica_requests_in_flight")
            assert list(in_flight.values()) == [4, 4]
            assert list((await here.metric("headway_engine_steps_total")).values()) == [9]
            assert list((await here.metric("headway_requests_continued_total")).values()) == [7]
            choices = await here.metric("headway_replica_choices_total")
            assert sorted(choices.values()) == [2, 5]
            assert list((await here.metric("headway_engine_restarts_total")).values()) == [3]

    run(scenario())


@pytest.mark.spec("B5")
def test_the_skew_is_how_much_more_the_busiest_replica_computed_than_the_mean() -> None:
    totals = PoolTotals()
    assert totals.skew() == 0.0
    for second, done in enumerate(((0, 0), (300, 100))):
        totals.observe(together(*(worked(each) for each in done)), Seconds(second))
    assert totals.skew() == pytest.approx(0.5)
    one = PoolTotals()
    for second in range(2):
        one.observe(worked(100 * second), Seconds(second))
    assert one.skew() == 0.0


def test_totals_of_a_pool_do_not_count_twice_when_one_replica_is_another_process() -> None:
    totals = PoolTotals()
    totals.observe(together(worked(100), worked(50)), Seconds(0.0))
    totals.observe(together(worked(120), worked(5, restarts=1)), Seconds(1.0))
    assert totals.totals["generated_tokens"] == 120 + 55
    assert totals.grown("generated_tokens") == 20 + 5
    assert totals.rate("generated_tokens", Seconds(1.0)) == pytest.approx(25.0)
