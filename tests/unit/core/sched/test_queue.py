import pytest

from headway.core.base.units import Seconds
from headway.core.sched.queue import Backlog
from tests.unit.core.sched.waiting import order, queue, sequence


def test_classes_go_in_strict_order_however_late_they_come() -> None:
    line = queue(*(sequence(i, slo_class=c) for i, c in enumerate([2, 1, 0, 2, 1, 0])))
    assert order(line) == [2, 5, 1, 4, 0, 3]


def test_the_earliest_deadline_of_a_tenant_goes_first_then_priority_then_arrival() -> None:
    line = queue(
        sequence(1, budget=9.0),
        sequence(2, budget=3.0),
        sequence(3, budget=3.0, priority=-1),
        sequence(4),
        sequence(5, priority=-5),
        sequence(6, budget=3.0),
    )
    assert order(line) == [3, 2, 6, 1, 5, 4]


def test_a_sequence_that_comes_back_stands_where_it_was() -> None:
    line = queue(*(sequence(number) for number in (1, 2, 3)))
    first = line.first(1)
    assert first is not None
    line.remove(first)
    line.push(first, Seconds(7.0))
    assert order(line) == [1, 2, 3]


def test_tenants_of_one_class_are_served_by_weight() -> None:
    a = [sequence(i, 10, tenant="a", weight=1.0) for i in range(30)]
    b = [sequence(100 + i, 10, tenant="b", weight=2.0) for i in range(30)]
    first = order(queue(*a, *b))[:30]
    assert sum(number >= 100 for number in first) == pytest.approx(20, abs=1)


def test_a_tenant_with_few_requests_does_not_wait_behind_one_with_many() -> None:
    line = queue(*(sequence(i, 10, tenant="many") for i in range(50)))
    line.push(sequence(99, 10, tenant="few"), Seconds(0.0))
    assert order(line).index(99) <= 1


def test_who_stays_away_saves_up_no_claim() -> None:
    line = queue()
    for i in range(100):
        line.push(sequence(i, 10, tenant="busy"), Seconds(0.0))
    assert len(order(line)) == 100
    for i in range(10):
        line.push(sequence(200 + i, 10, tenant="back"), Seconds(0.0))
        line.push(sequence(300 + i, 10, tenant="busy"), Seconds(0.0))
    ids = order(line)
    assert sum(number >= 300 for number in ids[:10]) >= 4


def test_waiting_lifts_by_one_class_and_then_by_another() -> None:
    old = sequence(1, slo_class=2, tenant="batch", arrived=0.0)
    new = sequence(2, slo_class=1, tenant="web", arrived=29.0)
    line = queue(old, new, ageing=30.0)
    line.age(Seconds(29.9))
    assert old.standing.rank == 2
    line.age(Seconds(30.0))
    assert old.standing.rank == 1
    line.age(Seconds(60.0))
    assert (old.standing.rank, new.standing.rank) == (0, 0)
    line.age(Seconds(1000.0))
    assert len(line) == 2


def test_lifted_requests_have_a_small_share_beside_those_who_belong_there() -> None:
    lifted = [sequence(i, 10, slo_class=2, tenant="batch") for i in range(50)]
    line = queue(*lifted, ageing=30.0)
    line.age(Seconds(30.0))
    for i in range(50):
        line.push(sequence(100 + i, 10, tenant="web", arrived=30.0), Seconds(30.0))
    first = order(line, 31.0)[:36]
    assert sum(number < 100 for number in first) == pytest.approx(4, abs=1)


def test_time_spent_running_is_no_waiting_and_time_waited_before_counts() -> None:
    made = sequence(1, slo_class=2)
    line = queue(made, ageing=30.0)
    line.remove(made)
    made.standing.waited = 20.0
    line.push(made, Seconds(500.0))
    line.age(Seconds(509.0))
    assert made.standing.rank == 2
    line.age(Seconds(510.0))
    assert made.standing.rank == 1


def test_who_is_set_aside_is_passed_and_stands_where_it_was_afterwards() -> None:
    one, two, three = (sequence(number) for number in (1, 2, 3))
    line = queue(one, two, three)
    line.set_aside(one)
    assert line.first(1) is two
    line.set_aside(two)
    line.remove(one)  # cancelled meanwhile
    line.restore(1)
    assert order(line) == [2, 3]


def test_the_short_ones_can_be_had_without_the_long() -> None:
    line = queue(sequence(1, is_long=True), sequence(2))
    first, short = line.first(1), line.first(1, with_long=False)
    assert first is not None
    assert short is not None
    assert (first.id, short.id) == (1, 2)


def test_choices_of_one_request_weigh_their_prompt_once() -> None:
    line = queue(sequence(1, 5, choice=0), sequence(2, 5, choice=1))
    assert (len(line), line.num_tokens) == (2, 5)


def test_sequences_that_find_a_slot_do_not_wait() -> None:
    line = queue(max_sequences=2)
    assert line.problem_with(4, 1, free_slots=2) is None
    assert line.problem_with(5, 1, free_slots=2) is not None


def test_one_prompt_over_the_token_limit_is_taken_when_nothing_waits() -> None:
    line = queue(max_tokens=10)
    assert line.problem_with(1, 50, free_slots=0) is None
    line.push(sequence(1), Seconds(0.0))
    assert "13 prompt tokens would wait, the limit is 10" in (line.problem_with(1, 10, 0) or "")


def test_less_important_requests_never_fill_the_line_for_others() -> None:
    line = queue(*(sequence(i, 5, slo_class=2) for i in range(2)), max_sequences=2, max_tokens=10)
    assert line.problem_with(1, 5, 0, slo_class=2) is not None
    assert line.problem_with(2, 10, 0, slo_class=1) is None
    assert line.problem_with(2, 10, 0, slo_class=0) is None


def test_what_goes_before_a_newcomer_is_counted_by_class_and_share() -> None:
    line = queue(
        sequence(1, 7, slo_class=0, tenant="v"),
        *(sequence(10 + i, 10, tenant="many") for i in range(10)),
        sequence(30, 6, tenant="few"),
        sequence(40, 50, slo_class=2, tenant="batch"),
    )
    assert line.before(1, "few", 1.0, tokens=4) == Backlog(1 + 1 + 1, 7 + 6 + 10)
    assert line.before(1, "many", 1.0, tokens=10) == Backlog(1 + 10 + 1, 7 + 100 + 6)
    assert line.before(0, "v", 1.0, tokens=4) == Backlog(1, 7)
    assert line.waiting_of(2) == Backlog(1, 50)


def test_a_line_that_churns_keeps_no_memory_of_those_who_left() -> None:
    line = queue()
    stays = sequence(0)
    line.push(stays, Seconds(0.0))
    for i in range(1, 2000):
        made = sequence(i, budget=1.0)
        line.push(made, Seconds(0.0))
        line.remove(made)
    heaps = [heap for pair in line._lines for each in pair for heap in each._heaps.values()]
    assert sum(len(heap) for heap in heaps) < 40
    assert order(line) == [0]
