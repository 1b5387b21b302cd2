"""Use of a KV pool: the formulas on examples made by hand."""

import pytest

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.sim.executor import SimExecutor, SimTokenizer
from headway.core.sim.memory import MemoryMeter, filled_positions, hold
from headway.core.sim.run import simulate
from headway.core.sim.workload import Workload
from tests.unit.core.sim.runs import COST, engine_settings, planned


def test_positions_of_the_last_block_are_waste_until_they_are_filled() -> None:
    # 6 of 8 positions in blocks 0 and 1; 4 of 4 in block 2.
    assert filled_positions([([0, 1], 6), ([2], 4)], 4) == (10, 12)


def test_a_shared_block_counts_once_and_with_the_most_that_is_in_it() -> None:
    assert filled_positions([([0, 1], 8), ([0, 2], 5)], 4) == (9, 12)
    assert filled_positions([([0], 1), ([0], 3)], 4) == (3, 4)


def test_blocks_that_are_reserved_for_later_are_waste() -> None:
    assert filled_positions([([0, 1, 2], 4)], 4) == (4, 12)


def test_a_meter_averages_over_the_time_in_which_requests_wait() -> None:
    # One slot: a runs, b waits. Pool of 4 blocks of 4.
    settings = engine_settings(max_num_seqs=1, num_blocks=4, max_model_len=16)
    core = EngineCore(settings, SimTokenizer())
    executor, meter = SimExecutor(COST), MemoryMeter()
    core.add(planned("a", 6, 3).request(0), Seconds(0.0))
    core.add(planned("b", 6, 1).request(1), Seconds(0.0))
    for took in (1.0, 3.0):
        plan = core.plan(Seconds(0.0))
        assert plan is not None
        executor.submit(plan)
        core.commit(plan, executor.collect(), Seconds(1.0))
        meter.probe(core, Seconds(took))
    use = meter.use()
    # 1 s with 6 positions computed and 3 s with 7, always in 2 blocks of the 4.
    assert use.seconds == 4.0
    assert use.live == use.utilisation == pytest.approx((1 * 6 + 3 * 7) / (4 * 16))
    assert use.waste == pytest.approx((1 * 2 + 3 * 1) / (4 * 8))
    assert use.running == 1.0


def test_cached_blocks_are_used_and_live_ones_too() -> None:
    # b is answered with a's blocks still cached; then c waits for b's slot.
    settings = engine_settings(max_num_seqs=1, num_blocks=16, max_model_len=32)
    meter = MemoryMeter()
    work = Workload(queue=tuple(planned(n, 8, 1) for n in ("a", "b", "c")), num_clients=3)
    simulate(work, settings, COST, probe=meter.probe)
    use = meter.use()
    assert use.utilisation > use.live


def test_when_nobody_waits_there_is_nothing_to_average() -> None:
    meter = MemoryMeter()
    simulate(
        Workload(queue=(planned("a"),), num_clients=1), engine_settings(), COST, probe=meter.probe
    )
    assert (meter.use().seconds, meter.use().utilisation) == (0.0, 0.0)


def test_reservation_runs_out_of_memory_while_most_of_it_is_empty() -> None:
    lengths = [10, 200, 10, 10, 10, 200]
    reserved = hold(lengths, num_blocks=4, block_size=256)
    assert (reserved.requests, reserved.tokens) == (4, 230)
    assert reserved.used == pytest.approx(230 / 1024)
    paged = hold(lengths, num_blocks=64, block_size=16)
    assert (paged.requests, paged.tokens) == (6, 440)
