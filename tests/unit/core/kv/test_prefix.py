from headway.core.kv.prefix import PrefixTree


def names(*letters: str) -> list[bytes]:
    return [letter.encode() for letter in letters]


def tree_of(*paths: str) -> PrefixTree:
    """Each path is a chain of one-letter names; blocks are numbered in order of insertion."""
    tree, count = PrefixTree(), 0
    for path in paths:
        for index, letter in enumerate(path):
            above = path[index - 1].encode() if index else None
            count += tree.insert(letter.encode(), above, count)
        tree.touch(names(*path))
    return tree


def test_the_longest_known_prefix_is_matched() -> None:
    tree = tree_of("abc")
    assert tree.match(names("a", "b", "x")) == [0, 1]
    assert tree.match(names("x", "a")) == []


def test_a_known_name_keeps_its_first_block() -> None:
    tree = tree_of("ab")
    assert not tree.insert(b"b", b"a", 9)
    assert tree.match(names("a", "b")) == [0, 1]


def test_nothing_is_inserted_below_an_evicted_parent() -> None:
    tree = tree_of("a")
    assert tree.evict(lambda _: True) == 0
    assert not tree.insert(b"b", b"a", 1)
    assert len(tree) == 0


def test_leaves_go_first_and_the_least_recently_used_path_before_others() -> None:
    tree = tree_of("ab", "xy")  # blocks 0 1 and 2 3
    tree.touch(names("a", "b"))
    order = [tree.evict(lambda _: True) for _ in range(5)]
    assert order == [3, 2, 1, 0, None]


def test_a_block_that_is_held_is_passed_over_and_found_again_later() -> None:
    tree = tree_of("a", "b")
    assert tree.evict(lambda block: block != 0) == 1
    assert tree.evict(lambda block: block != 0) is None
    assert tree.evict(lambda _: True) == 0


def test_an_inner_node_becomes_evictable_when_its_last_child_has_gone() -> None:
    tree = tree_of("ab", "ac")
    tree.check()
    assert [tree.evict(lambda _: True) for _ in range(3)] == [1, 2, 0]
    tree.check()


def test_what_is_kept_does_not_grow_while_the_same_prefix_is_used_again_and_again() -> None:
    tree = tree_of("abcd", "xy")
    for _ in range(1000):
        tree.touch(names("a", "b", "c", "d"))
    assert tree.num_candidates <= 100
    assert [tree.evict(lambda _: True) for _ in range(6)] == [5, 4, 3, 2, 1, 0]
    tree.check()
