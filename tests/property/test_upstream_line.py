"""Whatever comes and goes, the line for other servers loses nobody and keeps its order."""

import math

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.base.errors import CapacityError
from headway.core.base.units import Seconds
from headway.core.route.upstream_line import Newcomer, Place, UpstreamLine
from headway.core.tenancy.tenant import SloClass

PLACES = 3
MOST = 6
newcomers = st.builds(
    Newcomer,
    slo_class=st.sampled_from(list(SloClass)),
    tenant=st.sampled_from(["a", "b"]),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    tokens=st.integers(1, 5000),
    budget_s=st.one_of(st.none(), st.floats(0.1, 60.0)),
)


class LineMachine(RuleBasedStateMachine):
    """A server of a few places, and who waits for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.line = UpstreamLine(MOST, Seconds(math.inf))
        self.now = Seconds(0.0)
        self.waiting: list[Place] = []
        self.running: list[Place] = []

    def take(self, place: Place) -> None:
        """It goes to the server."""
        self.running.append(place)
        self.line.took(place, self.now, is_full=len(self.running) == PLACES)

    @rule(who=newcomers, passed=st.floats(0.0, 5.0))
    def comes(self, who: Newcomer, passed: float) -> None:
        """It is sent, waits or is refused with a time."""
        self.now = Seconds(self.now + passed)
        place = self.line.enter(who, self.now)
        if len(self.running) < PLACES and not self.waiting:
            return self.take(place)
        told: float | None = None
        try:
            self.line.join(place, self.now)
        except CapacityError as refused:
            told = refused.retry_after_s
        if told is not None:
            assert 1.0 <= told <= 60.0
            return
        self.waiting.append(place)
        patience = self.line.patience(place, self.now)
        assert (patience is None) == (who.budget_s is None)
        assert patience is None or who.budget_s is None or 0.0 <= patience <= who.budget_s

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 5000))
    def ends(self, data: st.DataObject, tokens: int) -> None:
        """One that was served is done, and the first in line is."""
        place = data.draw(st.sampled_from(self.running))
        self.running.remove(place)
        self.line.ended(place, self.now, tokens)
        first = self.line.first(self.now)
        if first is not None:
            self.waiting.remove(first)
            self.line.leave(first)
            self.take(first)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        """Its client has gone."""
        place = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(place)
        self.line.leave(place)

    @invariant()
    def nobody_is_lost_and_the_most_important_goes_first(self) -> None:
        """The first is one of those that wait, of the most important class among them."""
        assert len(self.line) == len(self.waiting)
        first = self.line.first(self.now)
        if not self.waiting:
            assert first is None
            return
        assert first in self.waiting
        assert first is not None
        classes = [place.group.request.slo_class for place in self.waiting]
        assert first.group.request.slo_class == min(classes)

    @invariant()
    def waits_are_longer_for_those_who_matter_less(self) -> None:
        """And never negative."""
        waits = [self.line.wait(each) for each in SloClass]
        assert waits[0] >= 0.0
        assert waits == sorted(waits)


TestUpstreamLine = LineMachine.TestCase
