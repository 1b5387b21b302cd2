"""An executor that computes nothing: it draws scripted tokens, and its steps have a price."""

from array import array
from collections import deque
from collections.abc import Mapping

from headway.core.base.units import Seconds
from headway.core.messages.step import StepPlan, StepResult
from headway.core.sim.costs import StepCost, work_of

END, TOKEN = 0, 1  # the two ids that are drawn
FIRST_PROMPT_ID = 1000  # prompts are made of ids from here on, past control tokens and bytes


class SimTokenizer:
    """Every token is one letter; END is the end of a sequence. Nothing is ever encoded."""

    vocab_size = 1 << 30
    eos_ids = (END,)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """One id a byte, as far as a simulation has text at all."""
        return [FIRST_PROMPT_ID + byte for byte in text.encode()]

    def min_tokens(self, text: str) -> int:
        """One a byte."""
        return len(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        """A letter."""
        return b"x"

    def is_special(self, token_id: int) -> bool:
        """Only the end is."""
        return token_id == END


class SimExecutor:
    """Implements Executor, and tells how long each plan takes.

    `ends` gives, by a request's seed, after how many drawn tokens its choices end by END;
    the others go on to their max_tokens. Log-probabilities and scores are never asked for.
    """

    def __init__(self, cost: StepCost, ends: Mapping[int, int] | None = None) -> None:
        self._cost = cost
        self._ends = ends
        self._submitted: deque[StepPlan] = deque()

    def seconds(self, plan: StepPlan) -> Seconds:
        """How long the plan takes; asked once for each plan, in order."""
        return self._cost.seconds(work_of(plan))

    def submit(self, plan: StepPlan) -> None:
        """Take a plan; its block tables do not matter here."""
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        """Draw the tokens of the oldest plan."""
        plan = self._submitted.popleft()
        assert not plan.scores, "a simulation has no log-probabilities"
        drawn = array("i", [TOKEN]) * len(plan.states)
        if self._ends:
            for draw, (state, position) in enumerate(zip(plan.states, plan.positions, strict=True)):
                if position + 1 == self._ends.get(state.sampling.seed):
                    drawn[draw] = END
        return StepResult(plan.step, drawn, (None,) * len(drawn))

    def close(self) -> None:
        """Holds nothing."""
