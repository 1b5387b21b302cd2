import pytest

from headway.core.base.units import Seconds
from headway.core.cost.fitted import FittedCost
from headway.core.cost.work import StepWork
from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockGrid
from headway.core.kv.tiers import TierSettings
from headway.core.sched.preempt import Way
from headway.core.sched.sequence import RequestGroup, Sequence
from headway.core.sched.swap import Swap
from tests.fakes import request

SIZE = 4
PREFILL_S = 0.01  # seconds a token, as measured


def measured_cost() -> FittedCost:
    cost = FittedCost()
    for tokens in (8, 16, 24, 16, 8, 24):
        work = StepWork()
        work.add(0, tokens)
        cost.observe(work, Seconds(PREFILL_S * tokens))
    return cost


def running(host: int = 8, cost: FittedCost | None = None) -> tuple[Swap, KvManager, Sequence]:
    """A sequence whose 16 tokens are computed, in four blocks."""
    kv = KvManager(16, SIZE, BlockGrid(4, 8), tiers=TierSettings(host))
    kv.host_ready(host)
    tokens = tuple(range(16))
    sequence = Sequence(0, RequestGroup(request("r", tokens), Seconds(0.0)), 0, ())
    sequence.table = kv.open(tokens, b"", names=sequence.names)
    assert kv.grow(sequence.table, 0, 16) is not None
    kv.fill(sequence.table, tokens, 16)
    sequence.num_computed = 16
    return Swap(kv, cost or measured_cost()), kv, sequence


@pytest.mark.spec("C6")
def test_the_blocks_are_kept_when_copying_is_faster_than_computing_again() -> None:
    swap, kv, sequence = running()
    swap.moved(100, 0.1)  # a block a millisecond: 8 ms out and in, against 160 ms
    assert swap.loss(sequence) == pytest.approx(0.008)
    assert swap.stop(sequence) is Way.SWAP
    assert kv.host.used == 4
    kv.check([], list(swap.kept.values()))
    swap.release(sequence)
    swap.release(sequence)
    assert not swap.kept
    kv.check([])


def test_they_are_not_when_copying_is_slower() -> None:
    swap, kv, sequence = running()
    swap.moved(100, 10.0)  # 800 ms against 160 ms
    assert swap.loss(sequence) == pytest.approx(0.16, rel=0.1)
    assert swap.stop(sequence) is Way.RECOMPUTE
    assert kv.host.used == 0
    assert kv.num_available == 16


def test_as_long_as_no_copy_was_measured_the_blocks_are_kept() -> None:
    swap, _, sequence = running(cost=FittedCost())
    assert swap.loss(sequence) == 16.0, "tokens, as nothing was measured"
    assert swap.stop(sequence) is Way.SWAP
    assert len(swap.kept) == 1


def test_while_blocks_are_short_they_are_kept_up_to_twice_what_computing_again_costs() -> None:
    for seconds, way in ((3.0, Way.SWAP), (5.0, Way.RECOMPUTE)):
        swap, _, sequence = running()
        swap.moved(100, seconds)  # 240 ms or 400 ms out and in, against 160 ms
        assert swap.loss(sequence) == pytest.approx(0.16, rel=0.1)
        assert swap.stop(sequence, is_short=True) is way


def test_what_was_copied_ahead_need_not_be_copied_when_the_sequence_is_stopped() -> None:
    swap, kv, sequence = running()
    swap.moved(100, 0.1)
    swap.ahead(sequence)
    assert len(kv.take_moves().saves) == 2, "two milliseconds of copying, a millisecond each"
    swap.ahead(sequence)
    assert len(kv.take_moves().saves) == 2
    assert sequence.table is not None
    assert kv.swap_cost(sequence.table, 16).num_blocks == 0
    assert swap.stop(sequence) is Way.SWAP
    assert kv.take_moves().saves == ()
    kv.check([], list(swap.kept.values()))


def test_one_block_is_copied_ahead_to_measure_and_none_of_who_would_be_computed_again() -> None:
    swap, kv, sequence = running()
    swap.ahead(sequence)
    assert len(kv.take_moves().saves) == 1
    slow, slow_kv, sequence = running()
    slow.moved(100, 100.0)
    slow.ahead(sequence)
    slow.ahead(None)
    assert slow_kv.take_moves().saves == ()


def test_without_room_on_the_host_they_are_computed_again() -> None:
    swap, kv, sequence = running(host=3)
    swap.moved(100, 0.1)
    assert swap.loss(sequence) == pytest.approx(0.16, rel=0.1)
    swap.stop(sequence)
    assert not swap.kept
    assert kv.num_available == 16
