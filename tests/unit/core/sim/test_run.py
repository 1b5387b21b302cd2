"""Runs that were worked out by hand, and what holds for every run."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.base.units import Seconds
from headway.core.sim.report import Outcome, Record
from headway.core.sim.run import Simulated, simulate
from headway.core.sim.workload import (
    Lengths,
    Mix,
    Party,
    Workload,
    benchmark,
    closed_loop,
    open_loop,
)
from tests.unit.core.sim.runs import COST, at, engine_settings, planned


def record(result: Simulated, request_id: str) -> Record:
    return next(r for r in result.records if r.id == request_id)


def test_a_request_alone_takes_its_prefill_and_a_step_a_token() -> None:
    result = simulate(at((0.0, planned("a", 4, 3))), engine_settings(), COST)
    assert record(result, "a").token_times == [1.5, 2.5, 3.5]
    assert record(result, "a").ttft == 1.5
    assert record(result, "a").e2e == 3.5
    assert (result.steps.num_steps, result.steps.sequence_steps) == (3, 3)
    assert result.steps.busy_s == 3.5


def test_what_arrives_during_a_step_is_planned_after_it() -> None:
    result = simulate(
        at((0.0, planned("a", 4, 2)), (0.5, planned("b", 4, 2))), engine_settings(), COST
    )
    # 0.0-1.5 prefill a; 1.5-3.0 decode a and prefill b; 3.0-4.0 decode b.
    assert record(result, "a").token_times == [1.5, 3.0]
    assert record(result, "b").token_times == [3.0, 4.0]
    assert record(result, "b").ttft == 2.5


def test_a_long_prompt_is_computed_in_chunks_beside_a_running_stream() -> None:
    work = at((0.0, planned("a", 4, 5)), (1.0, planned("b", 18, 1)))
    result = simulate(work, engine_settings(max_num_batched_tokens=9), COST)
    # b's 18 tokens need chunks of 8, 8 and 2, because a takes one token of each step.
    assert record(result, "a").token_times == [1.5, 3.5, 5.5, 6.75, 7.75]
    assert record(result, "b").token_times == [6.75]


def test_an_idle_engine_starts_at_the_arrival() -> None:
    result = simulate(at((10.0, planned("a", 4, 1))), engine_settings(), COST)
    assert record(result, "a").token_times == [11.5]


def test_an_answer_may_end_before_its_limit() -> None:
    result = simulate(at((0.0, planned("a", 4, 2, most=9))), engine_settings(), COST)
    assert record(result, "a").token_times == [1.5, 2.5]
    assert record(result, "a").outcome is Outcome.ANSWERED


def test_clients_of_a_closed_loop_think_between_requests() -> None:
    work = Workload(
        queue=(planned("a", 4, 1), planned("b", 4, 1)), num_clients=1, think=Seconds(0.25)
    )
    result = simulate(work, engine_settings(), COST)
    assert record(result, "a").token_times == [1.5]
    assert record(result, "b").arrived == 1.75
    assert record(result, "b").token_times == [3.25]


def test_a_full_queue_refuses_and_the_client_is_told_why() -> None:
    settings = engine_settings(max_num_seqs=1, max_waiting_requests=1)
    work = at(*((0.0, planned(name, 4, 2)) for name in "abc"))
    result = simulate(work, settings, COST)
    assert [record(result, name).outcome for name in "abc"] == [
        Outcome.ANSWERED,
        Outcome.ANSWERED,
        Outcome.REFUSED,
    ]
    assert record(result, "c").reason == "queue_full"
    assert record(result, "c").retry_after_s is not None


def test_a_shared_beginning_is_computed_once() -> None:
    mix = Mix(prompt=Lengths(low=4, high=4), output=Lengths(low=2, high=2), shared_prefix=16)
    result = simulate(closed_loop(mix, 8, 2, Random(1)), engine_settings(), COST)
    assert result.status.prefix_hits == 7 * 16
    assert sum(r.cached_tokens for r in result.records) == 7 * 16


def test_arrivals_stop_when_the_streams_they_disturb_have_ended() -> None:
    streams = (planned("s", 4, 3),)
    arrivals = ((Seconds(1.0), planned("x", 4, 1)), (Seconds(50.0), planned("y", 4, 1)))
    work = Workload(arrivals=arrivals, queue=streams, num_clients=1, stop_with_queue=True)
    result = simulate(work, engine_settings(), COST)
    assert sorted(r.id for r in result.records) == ["s", "x"]


@pytest.mark.parametrize("name", ["w1", "w2", "w3", "w4", "w5"])
def test_every_workload_of_the_benchmark_is_answered_whole(name: str) -> None:
    work = benchmark(name, Random(3), capacity=1.0, seconds=10.0)
    settings = engine_settings(
        max_model_len=4096,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        block_size=16,
        num_blocks=4096,
    )
    result = simulate(work, settings, COST)
    assert all(r.outcome is Outcome.ANSWERED for r in result.records)
    wanted = {planned.id: planned.output_tokens for planned in work.requests}
    assert all(len(r.token_times) == wanted[r.id] for r in result.records)


def test_the_benchmark_has_no_other_workload() -> None:
    with pytest.raises(ValueError, match="w9"):
        benchmark("w9", Random(0))
    with pytest.raises(ValueError, match="capacity"):
        benchmark("w5", Random(0))


MIX = Mix(
    prompt=Lengths(low=2, high=40),
    output=Lengths(low=1, high=12),
    parties=(Party(group="vip", share=0.3), Party(group="free", share=0.7)),
)


def run_of(seed: int, *, num_blocks: int = 20, waiting: int = 3) -> Simulated:
    work = open_loop(MIX, 2.0, 20.0, Random(seed))
    settings = engine_settings(num_blocks=num_blocks, max_waiting_requests=waiting)
    return simulate(work, settings, COST)


@given(st.integers(0, 10_000))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    assert run_of(seed).records == run_of(seed).records


@pytest.mark.spec("K2")
@given(st.integers(0, 10_000), st.integers(14, 40), st.integers(1, 6))
def test_every_request_is_answered_or_refused(seed: int, num_blocks: int, waiting: int) -> None:
    result = run_of(seed, num_blocks=num_blocks, waiting=waiting)
    total = result.summary().total
    assert total.answered + total.refused == total.sent == len(result.records)
    assert total.lost == 0
    status = result.status
    assert (status.num_running, status.num_waiting) == (0, 0)
    assert status.free_blocks + status.cached_blocks == status.total_blocks
