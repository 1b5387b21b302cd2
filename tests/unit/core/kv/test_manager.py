import pytest

from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockGrid, BlockTable

SIZE = 4


def manager(num_blocks: int = 8, *, rows: int = 4, caching: bool = True) -> KvManager:
    return KvManager(num_blocks, SIZE, BlockGrid(rows, 8), enable_prefix_caching=caching)


def computed(kv: KvManager, tokens: list[int], salt: bytes = b"") -> BlockTable:
    """A table whose tokens have all been computed."""
    table = kv.open(tokens, salt)
    assert kv.grow(table, table.num_cached, len(tokens)) is not None
    kv.fill(table, tokens, len(tokens))
    return table


@pytest.mark.spec("D1")
def test_a_table_grows_by_whole_blocks_and_shows_in_the_grid() -> None:
    kv = manager()
    table = kv.open([1, 2, 3], b"")
    assert kv.grow(table, 0, 3) == ()
    assert kv.grow(table, 3, 4) == ()
    assert len(table.blocks) == 1
    kv.grow(table, 4, 9)
    assert kv.grid.read(table.row, 3) == table.blocks
    kv.check([table])


def test_growing_past_the_pool_changes_nothing() -> None:
    kv = manager(2)
    table = computed(kv, [1, 2, 3, 4, 5])
    assert kv.grow(table, 5, 9) is None
    assert len(table.blocks) == 2
    kv.check([table])


@pytest.mark.spec("D2")
def test_a_closed_sequences_full_blocks_are_found_by_the_next() -> None:
    kv = manager()
    tokens = list(range(10))
    kv.close(computed(kv, tokens))
    again = kv.open(tokens, b"")
    assert again.num_cached == 8
    kv.check([again])


def test_prefix_cache_01_at_least_one_token_is_always_left_to_compute() -> None:
    kv = manager()
    tokens = list(range(8))
    kv.close(computed(kv, tokens))
    assert kv.open(tokens, b"").num_cached == 4


@pytest.mark.spec("M12")
def test_another_salt_finds_nothing() -> None:
    kv = manager()
    tokens = list(range(9))
    kv.close(computed(kv, tokens, salt=b"a"))
    assert kv.open(tokens, b"b").num_cached == 0
    assert kv.open(tokens, b"a").num_cached == 8


def test_without_caching_closed_blocks_are_free_at_once() -> None:
    kv = manager(caching=False)
    kv.close(computed(kv, list(range(9))))
    assert (kv.num_free, kv.num_cached) == (8, 0)


def test_cached_blocks_are_evicted_when_others_need_them() -> None:
    kv = manager(4)
    kv.close(computed(kv, list(range(16))))
    assert (kv.num_free, kv.num_cached) == (0, 4)
    table = computed(kv, list(range(100, 112)))
    assert (kv.num_free, kv.num_cached) == (0, 1)
    kv.check([table])


def test_a_fork_shares_blocks_and_the_first_to_write_a_shared_one_gets_a_copy() -> None:
    kv = manager()
    tokens = [1, 2, 3, 4, 5, 6]
    parent = computed(kv, tokens)
    child = kv.fork(parent, 5)
    assert child.blocks == parent.blocks
    copies = kv.grow(child, 5, 6)
    assert copies is not None
    assert [copy.source for copy in copies] == [parent.blocks[1]]
    assert child.blocks == [parent.blocks[0], copies[0].target]
    assert kv.grow(parent, 6, 7) == ()
    assert kv.is_writable(parent, 6, 7)
    assert kv.is_writable(child, 5, 6)
    kv.check([parent, child])


def test_a_full_block_that_the_cache_names_is_copied_before_it_is_written_again() -> None:
    kv = manager()
    parent = computed(kv, [1, 2, 3, 4])
    child = kv.fork(parent, 3)
    kv.close(parent)
    copies = kv.grow(child, 3, 4)
    assert copies is not None
    assert len(copies) == 1
    kv.check([child])
    kv.close(child)
    assert kv.num_available == 8


def test_two_sequences_that_computed_the_same_tokens_both_give_everything_back() -> None:
    kv = manager()
    tokens = list(range(8))
    one, two = computed(kv, tokens), kv.open(tokens, b"")
    assert kv.grow(two, two.num_cached, 8) is not None
    kv.fill(two, tokens, 8)
    kv.close(one)
    kv.close(two)
    assert kv.num_available == 8
    kv.check([])
