"""The seam between deciding and computing."""

from typing import Protocol

from headway.core.messages.step import StepPlan, StepResult


class Executor(Protocol):
    """Runs plans in the order in which they are submitted.

    At most two plans may be in flight. `submit` copies what it needs out of the shared
    block-table grid before it returns, because the next plan changes the grid.
    """

    def submit(self, plan: StepPlan) -> None:
        """Take a plan; may return before anything is computed."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan and return its result."""
        ...

    def close(self) -> None:
        """Free what it holds; calling it twice is harmless."""
        ...
