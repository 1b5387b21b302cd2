"""Rates over a window, totals over restarts, gauges of the moment."""

import msgspec
import pytest

from headway.core.base.metrics import RATE_WINDOW_S
from headway.core.base.units import Seconds
from headway.service.gateway.totals import EngineTotals
from headway.service.wire.transport import ReplicaState, ReplicaView
from tests.unit.service.gateway.fakes import STATUS, FakeReplica, run, site


def view(restarts: int = 0, **totals: int) -> ReplicaView:
    """An engine that has counted so much."""
    replica = FakeReplica()
    replica.status = msgspec.structs.replace(STATUS, **totals)
    replica.restarts = restarts
    return replica.view()


def test_totals_go_on_growing_when_the_engine_is_another_process() -> None:
    totals = EngineTotals()
    for second, steps in enumerate((5, 9, 2, 4)):
        seen = view(restarts=second // 2, num_steps=steps, generated_tokens=10 * steps)
        totals.observe(seen, Seconds(second))
    assert totals.totals["num_steps"] == 9 + 4
    assert totals.totals["generated_tokens"] == 90 + 40
    assert totals.grown("num_steps") == 9 + 4 - 5


def test_a_new_process_that_has_done_more_than_the_last_one_is_still_another() -> None:
    totals = EngineTotals()
    totals.observe(view(num_steps=5), Seconds(0.0))
    dead = FakeReplica()
    dead.status, dead.restarts = None, 1
    totals.observe(dead.view(), Seconds(1.0))
    totals.observe(view(restarts=1, num_steps=7), Seconds(2.0))
    totals.observe(view(restarts=1, num_steps=8), Seconds(3.0))
    assert totals.totals["num_steps"] == 5 + 8


def test_a_rate_looks_back_over_the_window_only() -> None:
    totals = EngineTotals()
    for second in range(300):
        tokens = 1000 * min(second, 200)  # then it stops
        totals.observe(view(generated_tokens=tokens), Seconds(second))
        if second == 150:
            assert totals.rate("generated_tokens", Seconds(second)) == pytest.approx(1000.0)
    assert totals.rate("generated_tokens", Seconds(299)) == 0.0
    assert len(totals._window) <= RATE_WINDOW_S + 3


def test_the_mean_step_size_weighs_every_step_the_same() -> None:
    totals = EngineTotals()
    for step, rows in enumerate((0, 4, 4, 1, 1, 1, 1)):
        totals.observe(view(num_steps=step, last_step_rows=rows), Seconds(step / 10))
    assert totals.mean_step_rows() == pytest.approx(12 / 6)
    assert EngineTotals().mean_step_rows() == 0.0


def test_gauges_show_the_engine_as_it_is() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.status = msgspec.structs.replace(
            STATUS,
            num_running=3,
            num_waiting=2,
            total_blocks=100,
            free_blocks=40,
            cached_blocks=20,
            memory_used=50,
            memory_budget=200,
            preemptions=6,
            num_steps=7,
            prefix_host_hits=11,
            swapped_out_blocks=12,
            swapped_in_blocks=13,
            preemptions_swapped=4,
            host_blocks_used=14,
            host_blocks_total=15,
        )
        replica.restarts = 2
        async with site(replica=replica) as here:
            for name, value in {
                "vllm:num_requests_running": 3,
                "vllm:num_requests_waiting": 2,
                "vllm:kv_cache_usage_perc": 0.4,
                "gpu_memory_utilization": 0.25,
                "request_preemption_count": 6,
                "vllm:num_preemptions_total": 6,
                "headway_engine_steps_total": 7,
                "headway_prefix_cache_host_hits_total": 11,
                "headway_kv_swapped_out_blocks_total": 12,
                "headway_kv_swapped_in_blocks_total": 13,
                "headway_preemptions_swapped_total": 4,
                "headway_kv_host_blocks_used": 14,
                "headway_kv_host_blocks": 15,
                "headway_engine_restarts_total": 2,
                "headway_engine_ready": 1,
            }.items():
                series = await here.metric(name)
                assert list(series.values()) == [value], name
            (info,) = await here.metric("vllm:cache_config_info")
            assert 'block_size="16"' in info
            assert 'num_gpu_blocks="64"' in info

    run(scenario())


def test_preemptions_are_told_by_class_and_kind_and_kept_over_restarts() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.status = msgspec.structs.replace(
            STATUS, swapped_by_class=(0, 3, 4), recomputed_by_class=(1, 0, 5)
        )
        async with site(replica=replica) as here:
            await here.metric("headway_class_preempted_total")
            replica.restarts = 1
            replica.status = msgspec.structs.replace(STATUS, recomputed_by_class=(0, 0, 2))
            series = await here.metric("headway_class_preempted_total")
            assert series == {
                f'{{kind="{kind}",model="m",slo_class="{name}"}}': number
                for kind, numbers in {"swap": (0, 3, 4), "recompute": (1, 0, 7)}.items()
                for name, number in zip(("vip", "standard", "internal"), numbers, strict=True)
            }

    run(scenario())


def test_a_scrape_works_before_the_engine_has_said_anything() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.state, replica.hello, replica.status = ReplicaState.STARTING, None, None
        async with site(replica=replica) as here:
            assert list((await here.metric("headway_engine_ready")).values()) == [0]
            assert await here.metric("vllm:num_requests_running") == {}

    run(scenario())
