import pytest

from headway.core.base.units import Seconds
from headway.core.sched.sequence import NEXT, RequestGroup, Sequence, State
from tests.fakes import request


def sequence() -> Sequence:
    group = RequestGroup(request(), Seconds(0.0))
    made = Sequence(7, group, 0, ())
    group.sequences.append(made)
    return made


def test_an_illegal_move_fails_with_both_names() -> None:
    made = sequence()
    made.move(State.FINISHED)
    with pytest.raises(AssertionError, match="sequence 7: FINISHED -> RUNNING"):
        made.move(State.RUNNING)


def test_every_state_has_its_moves_listed() -> None:
    assert set(NEXT) == set(State)


def test_the_gap_is_what_is_known_or_coming_and_not_yet_computed() -> None:
    made = sequence()
    assert made.gap == 3
    made.num_planned, made.num_pending = 3, 1
    assert made.gap == 1
    made.forget_steps()
    assert made.gap == 3
