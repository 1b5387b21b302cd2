"""Slots that are lent: used while nobody who is entitled to them waits, and given back at once."""

from headway.core.base.units import Seconds
from headway.core.sched.guests import Guests
from headway.core.sched.running import RunningSet
from tests.drive import Drive
from tests.fakes import greedy
from tests.mixed import INTERNAL, VIP, asked, machine
from tests.unit.core.sched.waiting import sequence


def long_ones(count: int) -> RunningSet:
    made = RunningSet()
    for number in range(count):
        made.add(sequence(number, slo_class=1, is_long=True))
    return made


def slots(run: Drive) -> dict[str, int]:
    """Running sequences by the first letter of their request."""
    names = [s.group.request.id[0] for s in run.core.scheduler.running.values()]
    return {name: names.count(name) for name in set(names)}


def lane_machine() -> Drive:
    return machine(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=400, long_prompt=8)


def test_the_latest_beyond_what_their_kind_is_entitled_to_are_guests() -> None:
    guests = Guests(8, max_long=7)
    assert guests.of(long_ones(7)) == (frozenset(), frozenset())
    assert guests.of(long_ones(8)) == (frozenset({7}), frozenset())
    assert guests.room(long_ones(6)) == (True, True)
    assert guests.room(long_ones(7)) == (False, True)


def test_one_that_gave_way_often_is_no_guest_again() -> None:
    often = sequence(0, is_long=True)
    assert Guests.may_come(often)
    often.standing.num_preempted = 2
    assert not Guests.may_come(often)


def test_long_requests_have_every_slot_while_no_short_one_waits() -> None:
    run = lane_machine()
    run.add(*(asked(f"long{i}", range(i, i + 9), sampling=greedy(40)) for i in range(12)))
    for _ in range(8):
        run.step()
    assert slots(run) == {"l": 8}


def test_a_short_request_gets_the_kept_slot_in_the_plan_after_it_came() -> None:
    run = lane_machine()
    run.add(*(asked(f"long{i}", range(i, i + 9), sampling=greedy(40)) for i in range(12)))
    for _ in range(8):
        run.step()
    run.add(asked("short", sampling=greedy(4)))
    run.step()
    assert slots(run) == {"l": 7, "s": 1}
    run.run()
    lengths = {name: len(answer.tokens[0]) for name, answer in run.answers.items()}
    assert lengths == {f"long{i}": 40 for i in range(12)} | {"short": 4}


def test_short_requests_one_after_the_other_stop_no_long_one_for_ever() -> None:
    run = lane_machine()
    run.add(*(asked(f"long{i}", range(i, i + 9), sampling=greedy(50)) for i in range(10)))
    for number in range(30):
        run.add(asked(f"short{number}", (number, 1, 2), sampling=greedy(2)))
        for _ in range(4):
            run.step()
    run.run()
    assert all(answer.finished for answer in run.answers.values())
    # Each of the ten can be a guest who gives way twice; nobody else is stopped.
    assert run.core.status().preemptions <= 20


def test_lifted_requests_have_every_slot_when_nobody_else_waits() -> None:
    run = machine(max_num_seqs=8, ageing=1.0, num_blocks=400, max_num_batched_tokens=64)
    run.add(*(asked(f"old{i}", range(i, i + 3), INTERNAL, sampling=greedy(30)) for i in range(30)))
    for _ in range(40):
        run.step()
    scheduler = run.core.scheduler
    assert sum(s.is_lifted for s in scheduler.running.values()) == 8
    run.add(*(asked(f"vip{i}", range(i, i + 3), VIP, sampling=greedy(9)) for i in range(8)))
    run.step()
    # All but the one that they have for certain give way to the VIPs.
    assert slots(run) == {"v": 7, "o": 1}
    run.run()
    assert all(answer.finished for answer in run.answers.values())
    assert run.core.scheduler.plan(Seconds(run.now)) == []
