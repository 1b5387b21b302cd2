import pytest

from headway.core.base.units import Blocks
from headway.core.sched.preempt import (
    MAX_PREEMPTIONS,
    Claim,
    Holder,
    Rates,
    Way,
    cheaper_way,
    choose_victims,
)


def holder(
    number: int,
    slo_class: int = 2,
    *,
    rank: int | None = None,
    blocks: int = 4,
    lost: float = 1.0,
    preempted: int = 0,
) -> Holder:
    standing = slo_class if rank is None else rank
    return Holder(number, slo_class, standing, Blocks(blocks), lost, preempted)


def vip(*, blocks: int = 0, slots: int = 0, rank: int = 0, slo_class: int = 0) -> Claim:
    return Claim(slo_class, rank, blocks, slots)


def test_nobody_is_stopped_when_all_together_would_not_be_enough() -> None:
    assert choose_victims([holder(1, blocks=3), holder(2, blocks=3)], vip(blocks=7)) is None
    assert choose_victims([holder(1, blocks=9)], vip(blocks=1, slots=2)) is None


def test_an_equal_class_is_never_a_victim() -> None:
    assert choose_victims([holder(1, 0), holder(2, 0)], vip(slots=1)) is None
    assert choose_victims([holder(1, 1)], vip(slots=1, slo_class=2, rank=0)) is None


def test_one_that_was_lifted_to_the_claimants_rank_is_no_victim() -> None:
    assert choose_victims([holder(1, 2, rank=0)], vip(slots=1)) is None
    assert choose_victims([holder(1, 2, rank=1)], vip(slots=1)) == (1,)


def test_a_lifted_claimant_stops_only_those_below_its_own_class() -> None:
    lifted = vip(slots=1, slo_class=1, rank=0)
    assert choose_victims([holder(1, 1)], lifted) is None
    assert choose_victims([holder(1, 2)], lifted) == (1,)


def test_the_lowest_class_gives_way_before_the_least_work() -> None:
    holders = [holder(1, 1, lost=0.1), holder(2, 2, lost=9.0), holder(3, 2, lost=3.0)]
    assert choose_victims(holders, vip(slots=1)) == (3,)
    assert choose_victims(holders, vip(slots=3)) == (3, 2, 1)


def test_the_latest_gives_way_among_equals() -> None:
    assert choose_victims([holder(1), holder(3), holder(2)], vip(slots=1)) == (3,)


def test_who_was_stopped_often_enough_gives_way_only_when_nobody_else_is_left() -> None:
    worn = holder(1, 2, lost=0.0, preempted=MAX_PREEMPTIONS)
    assert choose_victims([worn, holder(2, 1, lost=50.0)], vip(slots=1)) == (2,)
    assert choose_victims([worn, holder(2, 1)], vip(slots=2)) == (2, 1)
    assert choose_victims([worn], vip(slots=1)) == (1,)


def test_nobody_is_stopped_who_is_not_needed() -> None:
    holders = [holder(1, blocks=1, lost=1.0), holder(2, blocks=10, lost=2.0)]
    assert choose_victims(holders, vip(blocks=8)) == (2,)


def test_work_lost_is_the_cheaper_of_copying_and_computing_again() -> None:
    fast_copy = Rates(prefill_tokens_per_s=1000.0, copy_bytes_per_s=1e9)
    for tokens, way, seconds in ((2000, Way.SWAP, 0.2), (100, Way.RECOMPUTE, 0.1)):
        chosen, cost = cheaper_way(tokens, 10**8, fast_copy)
        assert chosen is way
        assert cost == pytest.approx(seconds)


def test_without_a_measured_copy_rate_nothing_is_swapped_and_tokens_are_compared() -> None:
    way, few = cheaper_way(10, 10**9, Rates())
    assert way is Way.RECOMPUTE
    assert few < cheaper_way(11, 0, Rates())[1]
