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
    """Fail when anybody is stopped who may not be.

    For blocks of one that runs: those of a less important class, and later equals. For a
    newcomer: those of a less important class that ageing does not protect, and of its equals
    only long guests, if it is short itself.
    Adds the classes of claimant and victim to `seen` for every preemption.
    """
    claims: list[tuple[Running, list[int], list[int]]] = []
    preempt = scheduler._preempt

    def claimed(name: str) -> None:
        method = getattr(scheduler, name)

        def call(sequence: Running, *rest: Any) -> Any:
            claims.append((sequence, *_lent_and_protected(scheduler)))
            try:
                return method(sequence, *rest)
            finally:
                claims.pop()

        setattr(scheduler, name, call)

    def checked(victim: Running, *rest: Any) -> None:
        claimant, lent, protected = claims[-1]
        ours, theirs = claimant.group.request.slo_class, victim.group.request.slo_class
        assert theirs >= ours, f"class {theirs} is stopped for class {ours}"
        if claimant.id in scheduler.running:
            assert theirs > ours or victim.id >= claimant.id, "an earlier equal is stopped"
        elif theirs > ours:
            is_below = victim.standing.rank > claimant.standing.rank
            assert is_below or victim.id not in protected, "one that ageing protects is stopped"
        else:
            assert victim.id in lent, "an equal that is no guest is stopped"
            assert not claimant.standing.is_long, "a long one takes a slot kept for short ones"
            assert not claimant.is_lifted, "a lifted one takes a slot kept for short ones"
        seen.append((ours, theirs))
        preempt(victim, *rest)

    for name in ("_continue", "_make_room"):
        claimed(name)
    scheduler._preempt = checked  # type: ignore[method-assign,assignment]


def _lent_and_protected(scheduler: Scheduler) -> tuple[list[int], list[int]]:
    """Ids of those that run: long ones beyond their slots, and lifted ones within theirs.

    Of eight slots one is kept for short requests; of sixteen, one is for lifted ones for
    certain. The latest are the guests.
    """
    running = sorted(scheduler.running.values(), key=lambda s: s.id)
    num_slots = scheduler.num_free_slots + len(running)
    long = [s.id for s in running if s.standing.is_long]
    lifted = [s.id for s in running if s.is_lifted]
    return long[num_slots - num_slots // 8 :], lifted[: max(1, num_slots // 16)]
