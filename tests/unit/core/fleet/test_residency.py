"""When a model is loaded and unloaded, under a clock that the test moves."""

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.base.units import Seconds
from headway.core.fleet.residency import (
    NEXT,
    PAUSE_FIRST,
    PAUSE_LIMIT,
    UNKNOWN_LOAD,
    Action,
    LoadWhen,
    Residency,
    ResidencySettings,
    Stage,
)

ZERO = Seconds(0.0)


def residency(load: str = LoadWhen.DEMAND, idle: float = 0.0, **more: float) -> Residency:
    return Residency(ResidencySettings(load=load, idle_unload=idle, **more), ZERO)


def loaded(idle: float = 0.0, took: float = 3.0) -> Residency:
    """On demand, wanted at 0 and loaded at `took`; nothing waits or runs."""
    one = residency(idle=idle)
    one.wait("first", ZERO)
    one.loading(ZERO)
    one.loaded(Seconds(took))
    one.leave("first", Seconds(took))
    return one


def test_a_model_of_the_start_is_loaded_at_once_and_one_on_demand_when_it_is_wanted() -> None:
    assert residency(LoadWhen.START).decide(ZERO) is Action.LOAD
    waits = residency()
    assert waits.decide(Seconds(1e6)) is Action.NOTHING
    waits.wait("r", Seconds(5.0))
    assert waits.decide(Seconds(5.0)) is Action.LOAD


def test_a_load_goes_on_when_the_request_that_wanted_it_has_left() -> None:
    one = residency()
    one.wait("r", ZERO)
    one.loading(ZERO)
    one.leave("r", Seconds(1.0))
    one.loaded(Seconds(3.0))
    assert one.stage is Stage.LOADED
    assert one.counts.last_load_s == 3.0


def test_it_is_unloaded_after_the_idle_time_counted_from_the_last_request() -> None:
    one = loaded(idle=10.0, took=3.0)
    assert one.idle_due() == 13.0
    one.wait("r", Seconds(8.0))
    one.run("r")
    assert one.idle_due() is None
    assert one.decide(Seconds(100.0)) is Action.NOTHING
    one.leave("r", Seconds(100.0))
    assert one.decide(Seconds(109.9)) is Action.NOTHING
    assert one.decide(Seconds(110.0)) is Action.UNLOAD


def test_without_an_idle_time_it_stays_for_good() -> None:
    one = loaded(idle=0.0)
    assert one.idle_due() is None
    assert one.decide(Seconds(1e9)) is Action.NOTHING


def test_draining_waits_for_what_runs_and_serves_what_comes_by_the_next_load() -> None:
    one = loaded()
    one.wait("old", Seconds(4.0))
    one.run("old")
    assert one.drain(Seconds(5.0))
    one.wait("new", Seconds(6.0))
    assert one.decide(Seconds(60.0)) is Action.NOTHING
    one.leave("old", Seconds(61.0))
    assert one.decide(Seconds(61.0)) is Action.UNLOAD
    one.unloading(Seconds(61.0))
    one.unloaded(Seconds(62.0))
    assert one.decide(Seconds(62.0)) is Action.LOAD
    one.loading(Seconds(62.0))
    one.loaded(Seconds(65.0))
    one.run("new")
    assert (one.num_waiting, one.num_running) == (0, 1)
    assert not residency().drain(ZERO)


def test_a_drained_model_that_nobody_wants_stays_away() -> None:
    one = loaded()
    one.drain(Seconds(4.0))
    one.unloading(Seconds(4.0))
    one.unloaded(Seconds(5.0))
    assert one.decide(Seconds(1e6)) is Action.NOTHING


def test_after_a_failure_it_is_tried_again_only_for_a_request_after_the_pause() -> None:
    one = residency()
    now = 0.0
    pauses = []
    for _ in range(9):
        one.wait("r", Seconds(now))
        assert one.decide(Seconds(now)) is Action.LOAD
        one.loading(Seconds(now))
        one.failed(Seconds(now))
        pause = one.retry_after(Seconds(now))
        one.wait("r", Seconds(now + pause - 0.1))
        assert one.decide(Seconds(now + pause - 0.1)) is Action.NOTHING
        pauses.append(pause)
        now += pause
    assert pauses[0] == PAUSE_FIRST
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert pauses[-1] == PAUSE_LIMIT
    assert one.counts.failed_loads == 9


def test_a_success_makes_the_next_failure_a_first_one() -> None:
    one = residency()
    for outcome in (one.failed, one.failed, one.loaded):
        one.wait("r", Seconds(1e4))
        one.loading(Seconds(1e4))
        outcome(Seconds(1e4))
    one.leave("r", Seconds(1e4))
    one.drain(Seconds(1e4))
    one.unloading(Seconds(1e4))
    one.unloaded(Seconds(1e4))
    one.loading(Seconds(1e4))
    one.failed(Seconds(1e4))
    assert one.retry_after(Seconds(1e4)) == PAUSE_FIRST


@pytest.mark.parametrize(
    ("load", "wait", "budget", "patience"),
    [
        (LoadWhen.DEMAND, None, None, 60.0),
        (LoadWhen.DEMAND, None, 3.0, 3.0),
        (LoadWhen.DEMAND, 2.0, 3.0, 2.0),
        (LoadWhen.START, None, None, 0.0),
        (LoadWhen.START, 7.0, None, 7.0),
        (LoadWhen.START, 7.0, 0.5, 0.5),
    ],
)
def test_a_request_waits_as_long_as_the_setting_and_its_promise_allow(
    load: str, wait: float | None, budget: float | None, patience: float
) -> None:
    settings = ResidencySettings(load=load, load_wait=wait)
    assert Residency(settings, ZERO).patience(budget) == patience


def test_retry_after_is_what_is_left_of_a_load_as_long_as_the_last_one() -> None:
    fresh = residency()
    assert fresh.expected_s(ZERO) is None
    assert fresh.retry_after(ZERO) == UNKNOWN_LOAD
    fresh.loading(ZERO)
    assert fresh.retry_after(Seconds(2.0)) == UNKNOWN_LOAD - 2.0
    again = loaded(took=8.0)
    again.drain(Seconds(9.0))
    again.unloading(Seconds(9.0))
    again.unloaded(Seconds(10.0))
    assert again.retry_after(Seconds(50.0)) == 8.0
    again.loading(Seconds(50.0))
    assert again.retry_after(Seconds(53.0)) == 5.0
    assert again.retry_after(Seconds(57.9)) == 1.0
    assert again.retry_after(Seconds(99.0)) == 1.0


def test_moves_that_are_not_in_the_table_fail_loudly() -> None:
    with pytest.raises(AssertionError, match="UNLOADED -> LOADED"):
        residency().loaded(ZERO)
    running = loaded()
    running.run("r")
    with pytest.raises(AssertionError, match="1 requests run"):
        running.unloading(ZERO)
    with pytest.raises(AssertionError):
        residency().run("r")


class Machine(RuleBasedStateMachine):
    """Any order of requests, of time passing and of loads that work or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.one = residency(idle=5.0)
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.count = 0

    @rule()
    def comes(self) -> None:
        self.count += 1
        self.waiting.append(f"r{self.count}")
        self.one.wait(self.waiting[-1], Seconds(self.now))

    @rule(seconds=st.floats(0.0, 400.0))
    def passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.one.stage is Stage.LOADED and self.waiting)
    @rule()
    def runs(self) -> None:
        self.running.append(self.waiting.pop(0))
        self.one.run(self.running[-1])

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting + self.running))
        (self.waiting if gone in self.waiting else self.running).remove(gone)
        self.one.leave(gone, Seconds(self.now))
        self.one.leave(gone, Seconds(self.now))

    @rule()
    def drains(self) -> None:
        was_loaded = self.one.stage is Stage.LOADED
        assert self.one.drain(Seconds(self.now)) == was_loaded

    @rule(works=st.booleans())
    def keeper_acts(self, works: bool) -> None:
        now, stage = Seconds(self.now), self.one.stage
        action = self.one.decide(now)
        if action is Action.LOAD:
            self.one.loading(now)
        elif action is Action.UNLOAD:
            assert not self.running
            self.one.unloading(now)
        elif stage is Stage.LOADING:
            self.one.loaded(now) if works else self.one.failed(now)
        elif stage is Stage.UNLOADING:
            self.one.unloaded(now)

    @invariant()
    def nothing_runs_without_an_engine(self) -> None:
        assert (self.one.num_waiting, self.one.num_running) == (
            len(self.waiting),
            len(self.running),
        )
        assert not self.running or self.one.stage in (Stage.LOADED, Stage.DRAINING)

    @invariant()
    def who_waits_is_served_or_was_there_at_a_failure(self) -> None:
        if self.waiting and self.one.stage is Stage.UNLOADED:
            assert self.one.decide(Seconds(self.now)) is Action.LOAD

    @invariant()
    def times_are_sane(self) -> None:
        assert self.one.retry_after(Seconds(self.now)) >= 1.0
        assert self.one.since <= self.now


TestResidency = Machine.TestCase


def test_every_stage_can_be_left_and_reached() -> None:
    assert set(NEXT) == set(Stage)
    assert set().union(*NEXT.values()) == set(Stage)
