import pytest

from headway.core.base.units import Seconds
from headway.core.kv.prefix import Node, PrefixTree


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


def blocks(nodes: list[Node]) -> list[int]:
    return [node.block for node in nodes]


def node_of(tree: PrefixTree, name: bytes) -> Node:
    node = tree.get(name)
    assert node is not None
    return node


def drop_oldest(tree: PrefixTree) -> int | None:
    """Takes the oldest leaf away, as eviction without a host tier does."""
    while (node := tree.oldest_on_device()) is not None:
        if node.is_on_device and not node.num_device_children:
            block = tree.displace(node)
            tree.remove(node)
            return block
    return None


def test_the_longest_known_prefix_is_matched() -> None:
    tree = tree_of("abc")
    assert blocks(tree.match(names("a", "b", "x"))) == [0, 1]
    assert tree.match(names("x", "a")) == []


def test_a_known_name_keeps_its_first_block() -> None:
    tree = tree_of("ab")
    assert not tree.insert(b"b", b"a", 9)
    assert blocks(tree.match(names("a", "b"))) == [0, 1]


def test_nothing_is_inserted_below_a_parent_that_has_gone() -> None:
    tree = tree_of("a")
    assert drop_oldest(tree) == 0
    assert not tree.insert(b"b", b"a", 1)
    assert len(tree) == 0


def test_leaves_go_first_and_the_least_recently_used_path_before_others() -> None:
    tree = tree_of("ab", "xy")  # blocks 0 1 and 2 3
    tree.touch(names("a", "b"))
    assert [drop_oldest(tree) for _ in range(5)] == [3, 2, 1, 0, None]


def test_an_inner_node_becomes_a_candidate_when_its_last_child_has_gone() -> None:
    tree = tree_of("ab", "ac")
    tree.check()
    assert [drop_oldest(tree) for _ in range(3)] == [1, 2, 0]
    tree.check()


def test_what_is_kept_does_not_grow_while_the_same_prefix_is_used_again_and_again() -> None:
    tree = tree_of("abcd", "xy")
    for _ in range(1000):
        tree.touch(names("a", "b", "c", "d"))
    assert tree.num_candidates <= 100
    assert [drop_oldest(tree) for _ in range(6)] == [5, 4, 3, 2, 1, 0]
    tree.check()


def test_a_node_that_left_the_device_is_still_known_and_may_come_back_by_being_computed() -> None:
    tree = tree_of("ab")
    leaf = node_of(tree, b"b")
    leaf.host = 7
    assert tree.displace(leaf) == 1
    tree.check()
    assert tree.match(names("a", "b")) == [node_of(tree, b"a"), leaf]
    assert tree.insert(b"b", b"a", 5)
    assert (leaf.block, leaf.host) == (5, 7)
    tree.check()


def test_nothing_comes_onto_the_device_below_a_parent_that_is_only_on_the_host() -> None:
    tree = tree_of("ab")
    for name in (b"b", b"a"):
        node_of(tree, name).host = 7
        tree.displace(node_of(tree, name))
    assert not tree.insert(b"b", b"a", 5)
    with pytest.raises(AssertionError, match="without its parent"):
        tree.place(node_of(tree, b"b"), 5)


def test_a_parent_cannot_leave_the_device_before_its_children() -> None:
    tree = tree_of("ab")
    with pytest.raises(AssertionError, match="before its children"):
        tree.displace(node_of(tree, b"a"))


def test_use_is_stamped_with_the_time_of_the_plan() -> None:
    tree = tree_of("ab")
    tree.now = Seconds(5.0)
    tree.touch([b"a"])
    assert (node_of(tree, b"a").used_at, node_of(tree, b"b").used_at) == (5.0, 0.0)
