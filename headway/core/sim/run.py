"""One run of a workload on one simulated replica."""

from collections.abc import Mapping
from typing import NamedTuple

from headway.core.engine.core import EngineCore
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.health import ReplicaStatus
from headway.core.sim.clients import Clients, Recorder
from headway.core.sim.costs import RecordedSteps, StepCost
from headway.core.sim.executor import SimExecutor, SimTokenizer
from headway.core.sim.gate import Gate
from headway.core.sim.loop import SimLoop
from headway.core.sim.replica import LoopReplica, Probe, SimRuns, StepTotals
from headway.core.sim.report import Record, Summary, summarize
from headway.core.sim.workload import Workload, answer_ends


class Simulated(NamedTuple):
    """What a run came to."""

    records: list[Record]
    steps: StepTotals
    status: ReplicaStatus  # of the engine at the end
    num_slots: int

    def summary(self, targets: Mapping[str, float] | None = None) -> Summary:
        """The clients' figures; `targets` as in `report.figures`."""
        return summarize(
            self.records,
            targets,
            slot_seconds=self.steps.row_seconds,
            num_slots=self.num_slots,
        )


def simulate(
    workload: Workload,
    settings: ResolvedEngine,
    cost: StepCost,
    *,
    gate: Gate | None = None,
    probe: Probe | None = None,
) -> Simulated:
    """Run a workload to its end; the same arguments give the same result."""
    pause = cost.pause if isinstance(cost, RecordedSteps) else None
    loop, recorder = SimLoop(), Recorder()
    core = EngineCore(settings, SimTokenizer())
    executor = SimExecutor(cost, answer_ends(workload.requests))
    replica = LoopReplica(core, SimRuns(executor, loop), loop, recorder, probe=probe, pause=pause)
    Clients(workload, loop, replica, recorder, gate).start()
    loop.run()
    return Simulated(
        list(recorder.records.values()), replica.totals, core.status(), settings.max_num_seqs
    )
