"""Tiny engines and costs whose runs can be worked out by hand."""

from headway.core.base.units import Seconds
from headway.core.sim.costs import StepTable
from headway.core.sim.workload import Planned, Workload
from tests.fakes import engine_settings

__all__ = ["COST", "at", "engine_settings", "planned"]

# A step takes 1 s with one decode or none, 1.5 s with two, 2 s with three; 0.125 s a prompt token.
COST = StepTable(
    rows=((1, 1.0), (2, 1.5)), decode_pair_s=0.0, prefill_token_s=0.125, prefill_pair_s=0.0
)


def planned(
    request_id: str,
    prompt: int = 4,
    output: int = 2,
    *,
    group: str = "all",
    most: int | None = None,
) -> Planned:
    """A request whose prompt is its own."""
    first = 2 + 100 * sum(request_id.encode())
    return Planned(
        id=request_id,
        prompt=tuple(range(first, first + prompt)),
        output_tokens=output,
        max_tokens=most or output,
        group=group,
    )


def at(*arrivals: tuple[float, Planned]) -> Workload:
    """An open loop."""
    return Workload(arrivals=tuple((Seconds(when), request) for when, request in arrivals))
