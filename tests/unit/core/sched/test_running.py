"""The running set keeps its order and its counts, whoever comes and goes."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.sched.running import RunningSet
from tests.unit.core.sched.waiting import sequence

NEWCOMERS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=12)


@given(newcomers=NEWCOMERS, data=st.data())
def test_order_and_counts_are_those_of_who_is_there(
    newcomers: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    running = RunningSet()
    for number, (slo_class, lifts, is_long) in enumerate(newcomers):
        each = sequence(number, slo_class=slo_class, is_long=is_long)
        each.standing.rank = max(0, slo_class - lifts)
        running.add(each)
        running.check()
    for number in data.draw(st.permutations(range(len(newcomers)))):
        assert [s.id for s in running.in_order()] == [
            s.id for s in sorted(running.values(), key=lambda s: (s.standing.rank, s.id))
        ]
        for slo_class in range(3):
            below = [s for s in running.values() if s.group.request.slo_class > slo_class]
            assert running.num_below(slo_class) == len(below)
        running.remove(running[number])
        running.check()
    assert not running
    assert running.in_order() == []


def test_the_order_is_a_list_of_its_own() -> None:
    running = RunningSet()
    for number in range(4):
        running.add(sequence(number))
    for each in running.in_order():
        running.remove(each)
    assert len(running) == 0
