from typing import Any

import pytest

from headway.core.base.units import Seconds
from headway.core.kv.manager import KvManager, Swapped
from headway.core.kv.table import BlockGrid, BlockTable
from headway.core.kv.tiers import Moves, TierSettings
from headway.core.messages.path import CacheMiss
from headway.core.messages.step import BlockMove

SIZE = 4


def manager(
    num_blocks: int = 4, host: int = 8, *, ready: int | None = None, ttl: float = 0.0, **more: Any
) -> KvManager:
    """`ready` of the host's blocks have memory; all of them, if it is not said."""
    kv = KvManager(
        num_blocks, SIZE, BlockGrid(4, 8), tiers=TierSettings(host, Seconds(ttl)), **more
    )
    kv.host_ready(host if ready is None else ready)
    return kv


def computed(kv: KvManager, tokens: list[int], salt: bytes = b"") -> BlockTable:
    """A table whose tokens have all been computed, and the plan came out."""
    table = kv.open(tokens, salt)
    assert kv.grow(table, table.num_cached, len(tokens)) is not None
    kv.take_moves()
    kv.fill(table, tokens, len(tokens))
    return table


def used_and_left(kv: KvManager, tokens: list[int]) -> None:
    """The tokens were computed, and their sequence has ended."""
    kv.close(computed(kv, tokens))


def pushed_out(kv: KvManager, count: int) -> None:
    """Somebody needed that many blocks."""
    table = kv.open([0], b"", use_cache=False)
    assert kv.grow(table, 0, count * SIZE) is not None
    kv.close(table)


OLD, NEW = list(range(9)), list(range(100, 109))


@pytest.mark.spec("M12")
def test_another_salt_finds_nothing_on_the_host_either() -> None:
    kv = manager()
    kv.close(computed(kv, OLD, b"a"))
    pushed_out(kv, 4)
    kv.take_moves()
    other = kv.open(OLD, b"b")
    assert (other.num_cached, other.num_cached_host, other.miss) == (0, 0, CacheMiss.OTHER_SALT)
    kv.close(other)
    assert kv.open(OLD, b"a").num_cached_host == 8


@pytest.mark.spec("D3")
def test_what_is_evicted_falls_to_the_host_and_comes_back_when_it_is_hit() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    assert len(kv.take_moves().saves) == 2
    table = kv.open(OLD, b"")
    assert (table.num_cached, table.num_cached_host, table.miss) == (8, 8, CacheMiss.NONE)
    moves = kv.take_moves()
    assert moves == Moves(
        (), tuple(BlockMove(b, h) for b, h in zip(table.blocks, (1, 0), strict=True))
    )
    kv.check([table])


def test_a_block_that_came_back_is_not_copied_again_when_it_leaves() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    kv.take_moves()
    kv.close(kv.open(OLD, b""))
    kv.take_moves()
    pushed_out(kv, 4)
    assert kv.take_moves().saves == ()
    assert kv.host.num_saved == 2


def test_a_load_that_nobody_waits_for_any_more_is_not_done() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    kv.take_moves()
    kv.close(kv.open(OLD, b""))
    assert (kv.take_moves().loads, kv.num_free) == ((), 4)
    kv.check([])


def test_only_what_the_executor_has_memory_for_is_used() -> None:
    kv = manager(ready=1)
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    assert [move.host for move in kv.take_moves().saves] == [0]
    assert kv.host.used == 1
    assert kv.open(OLD, b"").num_cached == 4, "the deeper block was dropped for the first"


def test_the_least_recently_used_leaves_the_host_first() -> None:
    kv = manager(host=2)
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    used_and_left(kv, NEW)
    pushed_out(kv, 4)
    kv.take_moves()
    assert kv.open(NEW, b"").num_cached == 8
    old = kv.open(OLD, b"")
    assert (old.num_cached, old.miss) == (0, CacheMiss.EVICTED)


def test_when_the_device_is_short_the_leading_part_comes_back() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    holder = kv.open([0], b"", use_cache=False)
    assert kv.grow(holder, 0, 3 * SIZE) is not None
    pushed_out(kv, 1)
    kv.take_moves()
    table = kv.open(OLD, b"")
    assert (table.num_cached, table.miss) == (4, CacheMiss.NO_ROOM)
    kv.check([holder, table])


def swapped(kv: KvManager, tokens: list[int]) -> Swapped:
    table = computed(kv, tokens)
    cost = kv.swap_cost(table, len(tokens))
    assert (cost.num_blocks, cost.num_tokens, cost.fits) == (2, 8, True)
    kept = kv.swap_out(table, tokens, len(tokens))
    assert kept is not None
    return kept


@pytest.mark.spec("C6")
@pytest.mark.parametrize("caching", [True, False])
def test_a_sequence_that_was_swapped_out_finds_its_full_blocks_again(caching: bool) -> None:
    kv = manager(enable_prefix_caching=caching)
    kept = swapped(kv, OLD)
    assert len(kv.take_moves().saves) == 2, "they are saved at once"
    pushed_out(kv, 4)
    kv.check([], [kept])
    table = kv.open([*OLD, 9], b"", swapped=kept)
    assert table.num_cached == 8
    kv.release(kept)
    assert len(kv.take_moves().loads) == 2
    kv.check([table])
    kv.close(table)
    assert kv.num_available == 4
    assert (kv.num_free == 4) is not caching
    assert (kv.host.used == 0) is not caching


def test_what_is_pinned_is_not_dropped_for_anything_else() -> None:
    kv = manager(host=2)
    kept = swapped(kv, OLD)
    used_and_left(kv, NEW)
    pushed_out(kv, 4)
    assert kv.open([*OLD, 9], b"", swapped=kept).num_cached == 8
    assert kv.open(NEW, b"").miss is CacheMiss.EVICTED


def test_a_full_host_says_no_and_the_table_stays_as_it_was() -> None:
    kv = manager(num_blocks=8, host=3)
    kept = swapped(kv, OLD)
    table = computed(kv, NEW)
    assert not kv.swap_cost(table, 9).fits
    assert kv.swap_out(table, NEW, 9) is None
    kv.check([table], [kept])
    kv.release(kept)
    assert kv.swap_cost(table, 9).fits
    assert kv.swap_out(table, NEW, 9) is not None


def test_without_a_host_or_a_full_block_nothing_is_swapped() -> None:
    kv = manager(host=0)
    table = computed(kv, OLD)
    assert kv.swap_out(table, OLD, 9) is None
    with_host = manager()
    short = computed(with_host, [1, 2, 3])
    assert not with_host.swap_cost(short, 3).fits
    assert with_host.swap_out(short, [1, 2, 3], 3) is None


def test_nobody_else_matches_what_was_swapped_out_without_a_cache() -> None:
    kv = manager(enable_prefix_caching=False)
    kept = swapped(kv, OLD)
    other = kv.open(OLD, b"")
    assert (other.num_cached, other.miss) == (0, CacheMiss.NOT_SHARED)
    kv.release(kept)
    kv.close(other)
    assert (kv.num_free, kv.host.used) == (4, 0)


def test_choices_that_share_blocks_are_swapped_out_without_a_cache_one_by_one() -> None:
    kv = manager(num_blocks=8, enable_prefix_caching=False)
    parent = computed(kv, OLD)
    child = kv.fork(parent, 8)
    first, second = kv.swap_out(parent, OLD, 9), kv.swap_out(child, OLD, 8)
    assert first is not None
    assert second is not None
    kv.check([], [first, second])
    kv.release(first)
    assert kv.open([*OLD, 9], b"", swapped=second).num_cached == 8
    kv.release(second)
    assert kv.host.used == 0


def test_a_host_block_is_not_saved_into_by_the_plan_that_loads_from_it() -> None:
    kv = manager(num_blocks=8, host=2, enable_prefix_caching=False)
    kept = swapped(kv, OLD)
    kv.take_moves()
    pushed_out(kv, 8)
    other = computed(kv, NEW)
    again = kv.open([*OLD, 9], b"", swapped=kept)
    kv.release(kept)
    assert not kv.swap_cost(other, 9).fits
    kv.take_moves()
    assert kv.swap_cost(other, 9).fits
    kv.check([other, again])


@pytest.mark.spec("M1")
def test_what_is_stopped_in_the_plan_that_loads_it_is_not_saved_before_it_is_loaded() -> None:
    kv = manager(enable_prefix_caching=False)
    kept = swapped(kv, OLD)
    pushed_out(kv, 4)
    assert len(kv.take_moves().saves) == 2
    table = kv.open([*OLD, 9], b"", swapped=kept)
    assert table.num_cached_host == 8
    kv.release(kept)
    again = kv.swap_out(table, OLD, 8)
    assert again is not None
    assert kv.take_moves().saves == ()
    kv.check([], [again])
    kv.release(again)
    assert (kv.num_free, kv.host.used) == (4, 0)


def test_what_ends_in_the_plan_that_loads_it_leaves_nothing_without_a_cache() -> None:
    kv = manager(enable_prefix_caching=False)
    kept = swapped(kv, OLD)
    pushed_out(kv, 4)
    kv.take_moves()
    table = kv.open([*OLD, 9], b"", swapped=kept)
    kv.release(kept)
    kv.close(table)
    kv.take_moves()
    kv.check([])
    assert (kv.num_free, kv.host.used) == (4, 0)


def test_a_load_does_not_go_where_a_copy_of_the_same_plan_reads() -> None:
    kv = manager(num_blocks=3)
    used_and_left(kv, OLD)
    pushed_out(kv, 3)
    kv.take_moves()
    parent = computed(kv, [1, 2])
    child = kv.fork(parent, 2)
    copies = kv.grow(child, 2, 3)
    assert copies is not None
    kv.close(parent)
    table = kv.open(OLD, b"")
    assert copies[0].source not in table.blocks
    kv.check([child, table])


def test_blocks_that_were_copied_ahead_stay_and_leave_later_without_a_copy() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    assert kv.save_ahead((), 8) == 2
    assert len(kv.take_moves().saves) == 2
    assert (kv.num_cached, kv.host.used) == (2, 2)
    pushed_out(kv, 4)
    assert kv.take_moves().saves == ()
    assert kv.open(OLD, b"").num_cached_host == 8


def test_the_first_that_would_go_is_copied_first() -> None:
    kv = manager()
    used_and_left(kv, OLD)
    assert kv.save_ahead((), 1) == 1
    kv.take_moves()
    pushed_out(kv, 3)
    assert (kv.take_moves().saves, kv.num_cached) == ((), 1)


def test_blocks_in_use_are_copied_ahead_by_name_only() -> None:
    kv = manager()
    table = computed(kv, OLD)
    assert kv.save_ahead((), 8) == 0
    assert kv.save_ahead(table.hashes, 8) == 2
    assert kv.swap_cost(table, 9).num_blocks == 0
    kept = kv.swap_out(table, OLD, 9)
    assert kept is not None
    assert len(kv.take_moves().saves) == 2
    kv.check([], [kept])


def test_copies_ahead_of_need_do_not_take_each_others_place() -> None:
    kv = manager(num_blocks=8, host=1)
    used_and_left(kv, OLD)
    used_and_left(kv, NEW)
    assert [kv.save_ahead((), 8) for _ in range(4)] == [1, 0, 0, 0]
    kv.check([])


def test_copies_ahead_of_need_take_the_place_of_what_was_not_used_for_longer() -> None:
    kv = manager(host=2)
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    used_and_left(kv, NEW)
    kv.take_moves()
    assert kv.save_ahead((), 8) == 2
    kv.take_moves()
    assert kv.open(OLD, b"").miss is CacheMiss.EVICTED
    kv.check([])


def test_what_is_pinned_keeps_its_place_before_copies_ahead_of_need() -> None:
    kv = manager(num_blocks=8, host=2)
    kept = swapped(kv, OLD)
    used_and_left(kv, NEW)
    assert kv.save_ahead((), 8) == 0
    kv.check([], [kept])


def test_without_a_host_nothing_is_copied_ahead() -> None:
    kv = manager(host=0)
    used_and_left(kv, OLD)
    assert kv.save_ahead((), 8) == 0


@pytest.mark.spec("M6")
def test_a_miss_has_its_reason() -> None:
    kv = manager(num_blocks=8, host=0)
    used_and_left(kv, OLD)
    assert kv.open(OLD, b"").miss is CacheMiss.NONE
    assert kv.open([*OLD[:5], 77, 77, 77, 77], b"").miss is CacheMiss.DIFFERS
    assert kv.open(NEW, b"").miss is CacheMiss.DIFFERS
    assert kv.open(OLD, b"b").miss is CacheMiss.OTHER_SALT


def test_a_prompt_that_is_computed_again_was_not_evicted_any_more() -> None:
    kv = manager(host=0)
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    assert kv.open(OLD, b"").miss is CacheMiss.EVICTED
    kv = manager(host=0)
    used_and_left(kv, OLD)
    pushed_out(kv, 4)
    used_and_left(kv, OLD)
    assert kv.open(OLD, b"").miss is CacheMiss.NONE


def test_what_nobody_used_for_its_time_is_dropped_on_both_tiers() -> None:
    kv = manager(num_blocks=4, ttl=10.0)
    used_and_left(kv, OLD)
    pushed_out(kv, 3)
    kv.take_moves()
    kv.tick(Seconds(5.0))
    used_and_left(kv, NEW)
    kv.tick(Seconds(11.0))
    assert kv.open(OLD, b"").num_cached == 0
    kept = kv.open(NEW, b"")
    assert kept.num_cached == 8
    kv.close(kept)
    kv.tick(Seconds(22.0))
    assert (kv.num_cached, kv.host.used) == (0, 0)
    kv.check([])


def test_what_is_held_or_pinned_does_not_expire() -> None:
    kv = manager(num_blocks=8, ttl=1.0)
    kept, table = swapped(kv, OLD), computed(kv, NEW)
    kv.tick(Seconds(100.0))
    kv.check([table], [kept])
    assert kv.open([*OLD, 9], b"", swapped=kept).num_cached == 8
    assert kv.open(NEW, b"").num_cached == 8
