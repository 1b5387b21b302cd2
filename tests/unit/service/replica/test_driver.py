import threading
from collections.abc import Callable

import pytest

from headway.core.base.clock import ManualClock
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.health import StepReport
from headway.core.messages.path import (
    Cancel,
    Command,
    Event,
    Finished,
    FinishReason,
    Started,
    Stop,
    Submit,
    Tokens,
)
from headway.core.messages.step import SamplingState, StepPlan
from headway.service.replica.driver import Driver, DriverSettings, Inbox, ProgressMeter
from tests.fakes import ByteTokenizer, engine_settings, greedy, hashed_next
from tests.fakes import ScriptedExecutor as LogitExecutor
from tests.fakes import request as real_request
from tests.fault.scripted import (
    CARD,
    CRASH,
    MAX_OPEN,
    SECRET,
    ScriptedEngine,
    ScriptedExecutor,
    request,
)

DEADLINE_S = 30.0


class Reports:
    """What the driver sent; once `stop_when` holds for the events, tells it to stop."""

    def __init__(self, stop_when: Callable[[list[Event]], bool]) -> None:
        self.all: list[StepReport] = []
        self._stop_when = stop_when
        self.driver: Driver | None = None

    def __call__(self, report: StepReport) -> None:
        self.all.append(report)
        if self.driver is not None and self._stop_when(self.events):
            self.driver.put(Stop())

    @property
    def events(self) -> list[Event]:
        return [event for report in self.all for event in report.events]


def ends(count: int) -> Callable[[list[Event]], bool]:
    return lambda events: sum(isinstance(event, Finished) for event in events) >= count


def drive(
    *commands: Command,
    until: Callable[[list[Event]], bool],
    engine: ScriptedEngine | None = None,
    executor: ScriptedExecutor | None = None,
    settings: DriverSettings | None = None,
) -> Reports:
    """Run a driver in this thread over commands that are there before it begins."""
    reports = Reports(until)
    driver = Driver(
        engine or ScriptedEngine(),
        executor or ScriptedExecutor(),
        reports,
        ManualClock(),
        settings,
    )
    reports.driver = driver
    for command in commands:
        driver.put(command)
    driver.run()
    return reports


def submit(request_id: str = "r1", **options: int) -> Submit:
    return Submit(request=request(request_id, **options))


def test_each_step_is_one_report_with_all_of_its_events() -> None:
    reports = drive(submit("a", max_tokens=2), submit("b", max_tokens=1), until=ends(2))
    kinds = [[type(event) for event in report.events] for report in reports.all]
    assert kinds == [[Started, Started, Tokens, Tokens, Finished], [Tokens, Finished]]
    assert [report.status.num_steps for report in reports.all] == [1, 2]


class IdleEngine(ScriptedEngine):
    """Takes work and never plans any of it."""

    def plan(self, now: Seconds) -> StepPlan | None:
        """Nothing."""
        return None


def test_an_engine_that_plans_nothing_while_it_has_work_ends_the_driver() -> None:
    with pytest.raises(AssertionError, match="has work and plans nothing"):
        drive(submit(), engine=IdleEngine(), until=lambda _: True)


def test_a_refused_request_ends_at_once_with_its_error() -> None:
    executor = ScriptedExecutor()
    reports = drive(
        submit("long", prompt_tokens=CARD.context_length + 1), until=ends(1), executor=executor
    )
    [finished] = reports.events
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.ERROR
    assert finished.usage.prompt_tokens == CARD.context_length + 1
    assert executor.max_in_flight == 0


def test_refusals_and_cancels_are_reported_before_the_step_that_follows() -> None:
    crowd = [submit(f"r{n}", max_tokens=9) for n in range(MAX_OPEN + 1)]
    reports = drive(*crowd, Cancel(request_id="r0"), until=lambda events: len(events) > 2)
    first, second = reports.all[:2]
    assert [(e.request_id, e.reason) for e in first.events if isinstance(e, Finished)] == [
        (f"r{MAX_OPEN}", FinishReason.ERROR),
        ("r0", FinishReason.CANCELLED),
    ]
    assert {event.request_id for event in second.events} == {f"r{n}" for n in range(1, MAX_OPEN)}


def test_a_cancel_is_handled_before_the_next_plan() -> None:
    executor = ScriptedExecutor()
    reports = drive(
        submit("r1", max_tokens=9), Cancel(request_id="r1"), until=ends(1), executor=executor
    )
    [finished] = reports.events
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED
    assert executor.max_in_flight == 0, "nothing was computed for it"


def test_stop_ends_the_run_and_closes_the_executor() -> None:
    executor = ScriptedExecutor()
    reports = drive(submit("r1", max_tokens=9), Stop(), until=ends(1), executor=executor)
    assert executor.closed
    assert reports.events == []


def test_what_the_executor_raises_leaves_the_run() -> None:
    with pytest.raises(RuntimeError, match=SECRET):
        drive(submit(order=CRASH), until=ends(1))


class StopsWhenChecked(ScriptedEngine):
    """Its consistency check tells the driver to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver | None = None

    def check(self) -> None:
        super().check()
        if self.driver is not None:
            self.driver.put(Stop())


def test_the_engine_checks_itself_when_idle_where_that_is_set() -> None:
    engine, reports = StopsWhenChecked(), Reports(lambda events: False)
    settings = DriverSettings(check_when_idle=True)
    driver = Driver(engine, ScriptedExecutor(), reports, ManualClock(), settings)
    engine.driver = driver
    driver.put(submit())
    driver.run()
    assert engine.num_checks == 1
    assert isinstance(reports.events[-1], Finished), "it was busy first"


def test_the_engine_does_not_check_itself_by_default() -> None:
    engine = ScriptedEngine()
    drive(submit(), until=ends(1), engine=engine)
    assert engine.num_checks == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_the_real_engine_answers_the_same_at_every_depth(depth: int) -> None:
    core = EngineCore(engine_settings(), ByteTokenizer())
    executor = LogitExecutor(core)
    reports = Reports(ends(3))
    driver = Driver(core, executor, reports, ManualClock(), DriverSettings(depth=depth))
    reports.driver = driver
    prompts = {"a": range(1, 40), "b": (5, 6), "c": (7,)}
    for request_id, prompt in prompts.items():
        driver.put(Submit(request=real_request(request_id, tuple(prompt), sampling=greedy(12))))
    driver.run()
    for request_id, prompt in prompts.items():
        got = [
            t.token_ids
            for t in reports.events
            if isinstance(t, Tokens) and t.request_id == request_id
        ]
        assert [token for ids in got for token in ids] == alone(tuple(prompt), 12)
    core.check()
    assert reports.all[-1].status.num_running == 0


def alone(prompt: tuple[int, ...], count: int) -> list[int]:
    """What the scripted model answers to a prompt by itself."""
    tokens = list(prompt)
    state = SamplingState(greedy(count), 0, tokens, len(prompt), ())
    for position in range(count):
        tokens.append(hashed_next(tokens, state, position))
    return tokens[len(prompt) :]


def test_an_idle_driver_is_woken_by_a_command() -> None:
    reports, ended = Reports(ends(1)), threading.Event()
    driver = Driver(ScriptedEngine(), ScriptedExecutor(), reports, ManualClock())
    reports.driver = driver

    def run() -> None:
        driver.run()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    driver.put(submit())
    assert ended.wait(DEADLINE_S)
    assert isinstance(reports.events[-1], Finished)


def test_the_status_says_what_the_weights_and_the_blocks_take() -> None:
    status = ScriptedEngine().status()
    status = type(status)(
        num_running=1,
        num_waiting=0,
        waiting_tokens=0,
        total_blocks=10,
        free_blocks=5,
        cached_blocks=2,
    )
    sized = DriverSettings(weight_bytes=1000, block_bytes=100).with_memory(status)
    assert (sized.memory_used, sized.memory_budget) == (1000 + 3 * 100, 1000 + 10 * 100)


def test_an_inbox_keeps_the_order_and_gives_each_command_once() -> None:
    inbox = Inbox()
    commands: list[Command] = [Cancel(request_id=str(number)) for number in range(3)]
    for command in commands:
        inbox.put(command)
    inbox.wait()  # returns, because there is something
    assert inbox.take() == commands
    assert inbox.take() == []


class TestProgress:
    """For how long work has been pending without a step, at given times."""

    def test_an_idle_engine_is_never_behind(self) -> None:
        meter = ProgressMeter()
        assert meter.read(Seconds(1000.0)) == (0, 0.0)

    def test_it_counts_from_the_arrival_of_work(self) -> None:
        meter = ProgressMeter()
        meter.work_arrived(Seconds(10.0))
        assert meter.read(Seconds(13.0)) == (0, 3.0)

    def test_a_step_starts_the_count_again_while_work_is_left(self) -> None:
        meter = ProgressMeter()
        meter.work_arrived(Seconds(10.0))
        meter.step_done(Seconds(12.0), has_work=True)
        assert meter.read(Seconds(13.0)) == (1, 1.0)
        meter.step_done(Seconds(14.0), has_work=False)
        assert meter.read(Seconds(99.0)) == (2, 0.0)

    def test_taking_commands_is_no_progress(self) -> None:
        meter = ProgressMeter()
        meter.work_arrived(Seconds(10.0))
        meter.work_arrived(Seconds(15.0))
        meter.inbox_emptied(Seconds(16.0), has_work=True)
        assert meter.read(Seconds(20.0)) == (0, 10.0)

    def test_work_that_was_refused_or_cancelled_is_not_pending(self) -> None:
        meter = ProgressMeter()
        meter.work_arrived(Seconds(10.0))
        meter.inbox_emptied(Seconds(16.0), has_work=False)
        assert meter.read(Seconds(20.0)) == (0, 0.0)
