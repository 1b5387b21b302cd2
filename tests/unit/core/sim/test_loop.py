"""The event loop."""

import pytest

from headway.core.base.units import Seconds
from headway.core.sim.loop import SimLoop


def test_actions_run_in_order_of_time_and_then_of_asking() -> None:
    loop, seen = SimLoop(), list[str]()
    loop.at(Seconds(2.0), lambda now: seen.append(f"late {now}"))
    loop.at(Seconds(1.0), lambda now: seen.append(f"first {now}"))
    loop.at(Seconds(1.0), lambda now: seen.append(f"second {now}"))
    loop.run()
    assert seen == ["first 1.0", "second 1.0", "late 2.0"]


def test_time_stands_still_unless_something_is_due() -> None:
    loop = SimLoop()
    loop.run()
    assert loop.now() == 0.0
    loop.at(Seconds(86_400.0), lambda now: None)
    loop.run()
    assert loop.now() == 86_400.0


def test_an_action_may_ask_for_another_at_the_same_time() -> None:
    loop, seen = SimLoop(), list[float]()
    loop.at(Seconds(1.0), lambda now: loop.at(now, seen.append))
    loop.run()
    assert seen == [1.0]


def test_running_until_a_time_leaves_what_is_due_later() -> None:
    loop, seen = SimLoop(), list[float]()
    for when in (1.0, 2.0, 3.0):
        loop.at(Seconds(when), seen.append)
    loop.run_until(Seconds(2.5))
    assert (seen, loop.now()) == ([1.0, 2.0], 2.5)


def test_the_past_is_refused() -> None:
    loop = SimLoop(5.0)
    with pytest.raises(AssertionError, match="before now"):
        loop.at(Seconds(4.0), lambda now: None)
