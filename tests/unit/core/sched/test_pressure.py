"""The ladder: up at once, down one rung after a calm while."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headway.core.base.units import Seconds
from headway.core.sched.held import HELD_SHARE
from headway.core.sched.pressure import Ladder, LadderLimits, Rung, Signals
from tests.unit.core.sched.waiting import sequence

LIMITS = LadderLimits()


def signals(
    free: float = 1.0, *, preemptions: int = 0, delay: float = 0.0, running: int = 0
) -> Signals:
    return Signals(free, preemptions, delay, num_running=running)


def at(ladder: Ladder, now: float, given: Signals) -> Rung:
    return ladder.observe(given, Seconds(now))


@pytest.mark.parametrize(
    ("given", "rung"),
    [
        (signals(), Rung.NORMAL),
        (signals(0.09), Rung.SWAP),
        (signals(0.0), Rung.SWAP),
        (signals(0.0, preemptions=2), Rung.SWAP),
        (signals(preemptions=3), Rung.HOLD),
        (signals(delay=31.0), Rung.REFUSE),
    ],
)
def test_each_shortage_has_its_rung(given: Signals, rung: Rung) -> None:
    assert at(Ladder(), 0.0, given) is rung


def test_it_climbs_at_once_and_comes_down_a_rung_at_a_time() -> None:
    ladder = Ladder()
    assert at(ladder, 0.0, signals(0.0, preemptions=3)) is Rung.HOLD
    assert at(ladder, 3.0, signals(preemptions=3)) is Rung.HOLD
    assert at(ladder, 5.5, signals(preemptions=3)) is Rung.SWAP
    assert at(ladder, 5.6, signals(preemptions=3)) is Rung.SWAP
    assert at(ladder, 7.5, signals(preemptions=3)) is Rung.NORMAL


def test_a_pool_full_of_running_sequences_takes_no_slots_while_nobody_is_stopped() -> None:
    ladder = Ladder()
    for now in range(10):
        assert at(ladder, float(now), signals(0.0)) is Rung.SWAP
    assert ladder.slots(32, rank=1) == 32
    assert not ladder.holds(2, [sequence(1, slo_class=1)])


def test_a_long_line_refuses_best_effort_and_takes_no_slots_away() -> None:
    ladder = Ladder()
    assert at(ladder, 0.0, signals(delay=99.0)) is Rung.REFUSE
    assert ladder.slots(32, rank=1) == 32
    assert not ladder.holds(2, [sequence(1, slo_class=1)])
    assert at(ladder, 1.9, signals()) is Rung.REFUSE
    assert at(ladder, 2.0, signals()) is Rung.NORMAL


def test_below_a_line_that_got_shorter_memory_has_a_rung_of_its_own() -> None:
    ladder = Ladder()
    assert at(ladder, 0.0, signals(preemptions=3, delay=99.0)) is Rung.REFUSE
    assert ladder.slots(32, rank=1) < 32
    assert at(ladder, 2.0, signals(preemptions=3)) is Rung.HOLD


def test_between_the_two_limits_it_stays_where_it_is() -> None:
    ladder = Ladder()
    for now in range(30):
        assert at(ladder, float(now), signals(0.15)) is Rung.NORMAL
    assert at(ladder, 30.0, signals(0.09)) is Rung.SWAP
    for now in range(31, 60):
        assert at(ladder, float(now), signals(0.15)) is Rung.SWAP
    assert at(ladder, 60.5, signals(0.21)) is Rung.SWAP
    assert at(ladder, 61.0, signals(0.21)) is Rung.NORMAL


def test_preemptions_are_forgotten_with_time() -> None:
    ladder = Ladder()
    assert at(ladder, 0.0, signals(preemptions=3)) is Rung.HOLD
    for now in range(1, 20):
        last = at(ladder, float(now), signals(preemptions=3))
    assert last is Rung.NORMAL


def test_an_idle_engine_is_on_the_ground_at_once() -> None:
    ladder = Ladder()
    at(ladder, 0.0, signals(0.0, preemptions=9, delay=99.0))
    assert at(ladder, 0.1, signals()._replace(is_idle=True)) is Rung.NORMAL


def test_while_holding_only_those_less_important_than_somebody_running_are_held() -> None:
    ladder = Ladder()
    running = [sequence(1, slo_class=1)]
    assert not ladder.holds(2, running)
    at(ladder, 0.0, signals(preemptions=3))
    assert ladder.holds(2, running)
    assert not ladder.holds(1, running)
    assert not ladder.holds(2, [])


def test_while_holding_three_quarters_of_what_ran_may_run_and_vips_have_all_slots() -> None:
    ladder = Ladder()
    assert ladder.slots(32, rank=1) == 32
    at(ladder, 0.0, signals(preemptions=3, running=9))
    assert ladder.slots(32, rank=1) == int((9 + 3) * HELD_SHARE) == 9
    assert ladder.slots(4, rank=1) == 4
    assert ladder.slots(32, rank=0) == 32


def test_while_holding_there_is_always_a_slot() -> None:
    ladder = Ladder()
    for now in range(40):
        at(ladder, float(now), signals(preemptions=3 * now, running=1))
        assert ladder.slots(32, rank=2) >= 1


def test_what_is_held_is_shrunk_again_only_for_as_many_more_that_are_stopped() -> None:
    ladder = Ladder()
    at(ladder, 0.0, signals(preemptions=3, running=13))
    assert ladder.slots(32, rank=1) == 12
    at(ladder, 0.5, signals(preemptions=5, running=12))
    assert ladder.slots(32, rank=1) == 12
    at(ladder, 1.0, signals(preemptions=6, running=11))
    assert ladder.slots(32, rank=1) == 9


def test_what_was_held_comes_back_in_steps_below_the_rung_and_then_all_at_once() -> None:
    ladder = Ladder()
    at(ladder, 0.0, signals(preemptions=3, running=29))
    seen = []
    for tick in range(40):
        rung = at(ladder, 0.5 * tick, signals(preemptions=3, running=20))
        assert rung is not Rung.HOLD or ladder.slots(99, rank=1) == 24
        seen.append(ladder.slots(99, rank=1))
    steps = [now for now, most in enumerate(seen) if now and most != seen[now - 1]]
    assert [seen[now] for now in steps] == [28, 99], "as many as ran when it began"
    assert steps[1] - steps[0] == 4, "two seconds apart"


def test_a_sequence_that_is_stopped_puts_off_what_comes_back() -> None:
    ladder = Ladder()
    for tick in range(13):
        at(ladder, 0.5 * tick, signals(preemptions=3, running=29))
    assert ladder.rung < Rung.HOLD
    at(ladder, 6.25, signals(preemptions=4, running=24))
    at(ladder, 8.0, signals(preemptions=4, running=24))
    assert ladder.slots(99, rank=1) == 24
    at(ladder, 8.25, signals(preemptions=4, running=24))
    assert ladder.slots(99, rank=1) == 28


def test_an_idle_engine_has_all_its_slots() -> None:
    ladder = Ladder()
    at(ladder, 0.0, signals(preemptions=3, running=9))
    at(ladder, 0.1, signals(preemptions=3)._replace(is_idle=True))
    assert ladder.slots(32, rank=1) == 32


class LadderMachine(RuleBasedStateMachine):
    """Random signals: it never comes down sooner or faster than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.ladder = Ladder()
        self.now = 0.0
        self.preemptions = 0
        self.changed = -100.0
        self.rung = Rung.NORMAL
        self.was_refusing = False  # before the last change: memory's rung showed from then on

    @rule(
        later=st.floats(0.0, 3.0),
        free=st.floats(0.0, 1.0),
        more=st.integers(0, 3),
        delay=st.floats(0.0, 60.0),
    )
    def observe(self, later: float, free: float, more: int, delay: float) -> None:
        self.now += later
        self.preemptions += more
        before = self.rung
        given = signals(free, preemptions=self.preemptions, delay=delay)
        self.rung = at(self.ladder, self.now, given)
        if self.rung < before:
            assert self.rung == before - 1 or before is Rung.REFUSE
            assert self.now - self.changed >= LIMITS.dwell or self.was_refusing
        if self.rung != before:
            self.changed = self.now
            self.was_refusing = before is Rung.REFUSE

    @invariant()
    def it_tells_its_rung(self) -> None:
        assert self.ladder.rung is self.rung


TestLadderMachine = LadderMachine.TestCase
