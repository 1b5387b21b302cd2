"""The schedule over real time, with a clock that the test moves."""

from array import array

from headway.app.wall_loop import WallLoop, WallRuns
from headway.core.base.units import Seconds
from headway.core.messages.step import StepPlan, StepResult


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_nothing_runs_before_its_time() -> None:
    time = Time()
    loop, seen = WallLoop(time.clock, time.sleep), list[float]()
    loop.at(Seconds(2.0), seen.append)
    loop.at(Seconds(0.5), seen.append)
    loop.run()
    assert seen == [0.5, 2.0]
    assert time.slept == [0.5, 1.5]


def test_what_became_due_during_a_long_action_runs_in_order_and_late() -> None:
    time = Time()
    loop, seen = WallLoop(time.clock, time.sleep), list[str]()
    loop.at(Seconds(0.0), lambda now: time.sleep(5.0))
    loop.at(Seconds(1.0), lambda now: seen.append(f"first at {now}"))
    loop.at(Seconds(2.0), lambda now: seen.append(f"second at {now}"))
    loop.run()
    assert seen == ["first at 5.0", "second at 5.0"]
    assert time.slept == [5.0]


def test_a_step_is_computed_and_its_plan_and_time_are_kept() -> None:
    time = Time()
    plan = StepPlan(
        step=1,
        tables=array("i", [0]),
        starts=array("i", [0]),
        num_tokens=array("i", [1]),
        token_ids=array("i", [7]),
        sequence_ids=(0,),
    )

    class Executor:
        def submit(self, plan: StepPlan) -> None:
            time.sleep(0.25)

        def collect(self) -> StepResult:
            return StepResult(1, array("i"), ())

        def close(self) -> None:
            """Holds nothing."""

    runs = WallRuns(Executor(), WallLoop(time.clock, time.sleep))
    done: list[float] = []
    runs.run(plan, lambda result, now: done.append(now))
    assert done == [0.25]
    assert runs.last is plan
    assert runs.collected == 0.25
