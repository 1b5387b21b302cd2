"""Requests of several classes and tenants, and machines to run them on."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headway.core.engine.core import EngineCore
from headway.core.messages.path import EngineRequest, Sampling
from headway.core.sched.scheduler import Scheduler
from headway.core.sched.sequence import Sequence as Running
from tests.drive import Drive
from tests.fakes import (
    ByteTokenizer,
    NextToken,
    ScriptedExecutor,
    engine_settings,
    greedy,
    hashed_next,
)

VIP, STANDARD, INTERNAL = range(3)


def asked(
    request_id: str,
    prompt: Sequence[int] = (1, 2, 3),
    slo_class: int = STANDARD,
    *,
    tenant: str = "",
    weight: float = 1.0,
    budget: float | None = None,
    n: int = 1,
    sampling: Sampling | None = None,
) -> EngineRequest:
    """A request of a class and a tenant."""
    return EngineRequest(
        id=request_id,
        prompt=tuple(prompt),
        sampling=sampling or greedy(),
        num_choices=n,
        slo_class=slo_class,
        tenant=tenant,
        tenant_weight=weight,
        first_token_budget_s=budget,
    )


def machine(depth: int = 0, next_token: NextToken = hashed_next, **settings: Any) -> Drive:
    """An engine on scripted logits; `settings` are those of ResolvedEngine."""
    core = EngineCore(
        msgspec.structs.replace(engine_settings(), **settings), ByteTokenizer(), model=""
    )
    return Drive(core, ScriptedExecutor(core, next_token), depth)


class TimedDrive(Drive):
    """A drive whose steps take their second between plan and commit, so that rates are measured."""

    def step(self) -> bool:
        """One step, a second long."""
        self.now -= 1.0
        return super().step()

    def _commit(self) -> None:
        self.now += 1.0
        super()._commit()


def timed(**settings: Any) -> TimedDrive:
    """As `machine`, with steps that take time."""
    run = machine(**settings)
    return TimedDrive(run.core, run.executor)


def watch_class_order(scheduler: Scheduler, seen: list[tuple[int, int]]) -> None:
    """Fail when anybody is stopped for a less important one, or by a later equal.

    Adds the classes of claimant and victim to `seen` for every preemption.
    """
    claimants: list[Running] = []
    preempt = scheduler._preempt

    def claimed(name: str) -> None:
        method = getattr(scheduler, name)

        def call(sequence: Running, *rest: Any) -> Any:
            claimants.append(sequence)
            try:
                return method(sequence, *rest)
            finally:
                claimants.pop()

        setattr(scheduler, name, call)

    def checked(victim: Running, *rest: Any) -> None:
        claimant = claimants[-1]
        ours, theirs = claimant.group.request.slo_class, victim.group.request.slo_class
        assert theirs >= ours, f"class {theirs} is stopped for class {ours}"
        gives_back = victim.standing.is_long and not claimant.standing.is_long
        is_later = victim.id >= claimant.id or gives_back
        assert theirs > ours or is_later, "an earlier equal is stopped"
        seen.append((ours, theirs))
        preempt(victim, *rest)

    for name in ("_continue", "_make_room"):
        claimed(name)
    scheduler._preempt = checked  # type: ignore[method-assign,assignment]
