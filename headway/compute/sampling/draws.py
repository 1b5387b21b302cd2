"""One draw of a step."""

from typing import NamedTuple

from headway.core.base.philox import uniform
from headway.core.messages.step import SamplingState

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
