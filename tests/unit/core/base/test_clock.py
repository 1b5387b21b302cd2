import pytest

from headway.core.base.clock import ManualClock


def test_a_manual_clock_moves_only_when_told_and_never_back() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == 5.0
    clock.advance(2.5)
    assert clock.now() == 7.5
    with pytest.raises(AssertionError, match="cannot move"):
        clock.advance(-1.0)
