"""The draws of a step."""

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.base.philox import uniform
from headway.core.messages.step import SamplingState, StepPlan

# At 1e-5 a logit 1e-3 below the best has a probability of e^-100: below it, temperature
# only adds the risk of overflow.
GREEDY_TEMPERATURE = 1e-5


class Draw(NamedTuple):
    """One draw of a step."""

    state: SamplingState
    position: int  # output position
    last: int | None = None  # history's last token, when state.tokens may lack it

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken, whatever the filters say."""
        return self.state.sampling.temperature < GREEDY_TEMPERATURE

    @property
    def chance(self) -> float:
        """Where in the row's distribution this draw falls, in [0, 1)."""
        return uniform(self.state.sampling.seed, self.state.choice, self.position)


def draws_of(plan: StepPlan, previous: Sequence[int]) -> list[Draw]:
    """The draws of a plan's rows; `previous` are the tokens that the step before has drawn."""
    pending = dict(zip(plan.pending_rows, plan.pending_from, strict=True))
    draws = []
    for row, position, state in zip(plan.sample_rows, plan.positions, plan.states, strict=True):
        origin = pending.get(row)
        draws.append(Draw(state, position, None if origin is None else previous[origin]))
    return draws
