from dataclasses import dataclass

from headway.core.kv.recency import FEWEST_ENTRIES, Recency


@dataclass
class Item:
    last_used: int


def test_the_least_recently_used_comes_out_first() -> None:
    items = {b"a": Item(2), b"b": Item(1)}
    recency = Recency()
    for name, item in items.items():
        recency.push(item.last_used, name, items)
        recency.push(item.last_used, name, items)
    assert recency.pop(items) is items[b"b"]
    assert recency.pop(items) is items[b"b"], "what was pushed twice without use in between"
    assert recency.pop(items) is items[b"a"]


def test_what_is_gone_or_was_used_again_is_passed_over() -> None:
    items = {b"a": Item(1), b"b": Item(2), b"c": Item(3)}
    recency = Recency()
    for name, item in items.items():
        recency.push(item.last_used, name, items)
    del items[b"a"]
    items[b"b"].last_used = 9
    assert recency.pop(items) is items[b"c"]
    assert recency.pop(items) is None


def test_stale_entries_do_not_pile_up() -> None:
    items = {b"a": Item(0)}
    recency = Recency()
    for tick in range(1000):
        items[b"a"].last_used = tick
        recency.push(tick, b"a", items)
        assert len(recency) <= FEWEST_ENTRIES + 3
    assert recency.pop(items) is items[b"a"]
