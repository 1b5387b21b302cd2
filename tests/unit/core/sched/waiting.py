"""Builders for tests of the waiting line."""

from headway.core.base.units import Seconds
from headway.core.messages.path import EngineRequest
from headway.core.sched.queue import QueueLimits, WaitingQueue
from headway.core.sched.sequence import RequestGroup, Sequence
from tests.fakes import greedy


def sequence(
    sequence_id: int,
    length: int = 3,
    *,
    choice: int = 0,
    slo_class: int = 1,
    tenant: str = "",
    weight: float = 1.0,
    budget: float | None = None,
    priority: int = 0,
    arrived: float = 0.0,
    is_long: bool = False,
) -> Sequence:
    """A sequence that waits; only what matters to the case need be said."""
    request = EngineRequest(
        id=f"r{sequence_id}",
        prompt=tuple(range(length)),
        sampling=greedy(),
        slo_class=slo_class,
        tenant=tenant,
        tenant_weight=weight,
        first_token_budget_s=budget,
        priority=priority,
    )
    made = Sequence(sequence_id, RequestGroup(request, Seconds(arrived)), choice, ())
    made.group.sequences.append(made)
    made.standing.is_long = is_long
    return made


def queue(
    *sequences: Sequence, max_sequences: int = 2, max_tokens: int = 10, ageing: float = 1e9
) -> WaitingQueue:
    """A line in which these wait since they arrived."""
    line = WaitingQueue(QueueLimits(max_sequences, max_tokens), Seconds(ageing))
    for each in sequences:
        line.push(each, each.group.arrived)
    return line


def order(line: WaitingQueue, now: float = 0.0) -> list[int]:
    """Ids in the order in which they would start; empties the line."""
    line.age(Seconds(now))
    ids = []
    for rank in range(3):
        while (first := line.first(rank)) is not None:
            line.remove(first)
            line.charge(first, first.num_prompt)
            ids.append(first.id)
    return ids
