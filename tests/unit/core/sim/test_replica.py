"""A replica on a schedule: what happens between its steps."""

from collections.abc import Sequence

from headway.core.base.errors import HeadwayError
from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Event, Finished, FinishReason
from headway.core.sim.executor import SimExecutor, SimTokenizer
from headway.core.sim.loop import SimLoop
from headway.core.sim.replica import LoopReplica, SimRuns
from tests.unit.core.sim.runs import COST, engine_settings, planned


class Listener:
    """Keeps what it is told, with the time."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []
        self.refusals: list[tuple[float, str]] = []

    def took(self, events: Sequence[Event], now: Seconds) -> None:
        self.events += [(now, event) for event in events]

    def refused(self, request: EngineRequest, error: HeadwayError, now: Seconds) -> None:
        self.refusals.append((now, request.id))

    def ends(self) -> dict[str, tuple[float, FinishReason]]:
        return {e.request_id: (at, e.reason) for at, e in self.events if isinstance(e, Finished)}


def replica(
    pause: float | None = None, *, num_blocks: int = 64
) -> tuple[SimLoop, LoopReplica, Listener]:
    loop, listener = SimLoop(), Listener()
    core = EngineCore(engine_settings(num_blocks=num_blocks), SimTokenizer())
    runs = SimRuns(SimExecutor(COST), loop)
    wait = None if pause is None else lambda: Seconds(pause)
    return loop, LoopReplica(core, runs, loop, listener, pause=wait), listener


def test_a_cancel_is_seen_after_the_running_step_and_frees_the_blocks() -> None:
    loop, sim, listener = replica()
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("a", 4, 50).request(0)))
    loop.at(Seconds(2.0), lambda now: sim.cancel("a"))
    loop.run()
    assert listener.ends() == {"a": (2.5, FinishReason.CANCELLED)}
    assert loop.now() == 2.5, "nothing is planned after it"
    status = sim.core.status()
    assert status.free_blocks + status.cached_blocks == status.total_blocks


def test_a_request_that_can_never_run_is_refused_and_the_others_go_on() -> None:
    loop, sim, listener = replica()
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("long", 60, 30).request(0)))
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("a", 4, 2).request(1)))
    loop.run()
    assert listener.refusals == [(0.0, "long")]
    assert listener.ends() == {"a": (2.5, FinishReason.LENGTH)}


def test_a_pause_lies_between_a_step_and_the_next_plan() -> None:
    loop, sim, listener = replica(0.25)
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("a", 4, 3).request(0)))
    loop.run()
    assert listener.ends() == {"a": (1.5 + 0.25 + 1.0 + 0.25 + 1.0, FinishReason.LENGTH)}


def test_totals_are_those_of_all_steps() -> None:
    loop, sim, _ = replica()
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("a", 4, 2).request(0)))
    loop.at(Seconds(0.0), lambda now: sim.submit(planned("b", 4, 2).request(1)))
    loop.run()
    # Both prompts at once, 2 s; both decodes, 1.5 s.
    assert (sim.totals.num_steps, sim.totals.sequence_steps) == (2, 4)
    assert (sim.totals.busy_s, sim.totals.row_seconds) == (3.5, 7.0)
