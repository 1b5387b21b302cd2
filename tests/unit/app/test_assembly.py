from array import array

from headway.app.assembly import warm_up
from headway.core.messages.step import StepPlan, StepResult


class OneStep:
    """An executor that keeps the plan it was given."""

    def __init__(self) -> None:
        self.plan: StepPlan | None = None
        self.collected = 0

    def submit(self, plan: StepPlan) -> None:
        self.plan = plan

    def collect(self) -> StepResult:
        self.collected += 1
        return StepResult(step=0, token_ids=array("i", [1]), logprobs=(None,))

    def close(self) -> None:
        raise AssertionError("it is needed afterwards")


def test_the_warm_up_computes_draws_and_scores_one_token() -> None:
    executor = OneStep()
    warm_up(executor)
    assert executor.plan is not None
    assert executor.plan.num_tokens == array("i", [1])
    assert len(executor.plan.states) == 1
    assert [list(score.targets) for score in executor.plan.scores] == [[0]]
    assert executor.collected == 1
