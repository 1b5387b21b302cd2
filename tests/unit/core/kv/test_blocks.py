import pytest

from headway.core.kv.blocks import BlockPool, OutOfBlocks


def test_taking_more_than_is_free_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.take(3)
    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 1 free"):
        pool.take(2)
    assert pool.num_free == 1


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.share([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2


def test_references_beyond_the_first_are_counted_as_shared() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2)
    assert pool.num_shared == 0
    pool.share([first])
    pool.share([first, second])
    assert pool.num_shared == 3
    pool.retain(second)
    pool.release([second, first])
    assert pool.num_shared == 1
    pool.release([second])
    pool.release([first, first])
    assert (pool.num_shared, pool.num_cached) == (0, 1), "what is only cached is not held"
    pool.share([second])
    assert pool.num_shared == 0
    pool.check()


def test_a_retained_block_is_cached_and_not_free_when_nobody_holds_it() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.retain(block)
    pool.release([block])
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.share([block])
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.release([block])
    pool.forget(block)
    assert (pool.num_free, pool.num_cached) == (2, 0)


def test_a_block_is_exclusive_only_for_one_holder_and_without_the_cache() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    assert pool.is_exclusive(block)
    pool.share([block])
    assert not pool.is_exclusive(block)
    pool.release([block])
    pool.retain(block)
    assert not pool.is_exclusive(block)


def test_releasing_more_than_is_held_is_a_bug_that_shows() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="released more than held"):
        pool.release([0])


def test_sharing_a_free_block_is_a_bug_that_shows() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="is free"):
        pool.share([0])
