"""Fitting a StepTable to measured steps.

The table has the least sum of relative errors, not of their squares, over weights that cannot be
negative: steps are held up by whatever else runs, and never hurried, so that what they usually
take is their middle and not their mean. The spread beside it gives back what they are held up by.

Where the steps say little, weak equations beside them say what is likely: a line between the
numbers of rows goes on straight, and a pair costs as much arithmetic as the model's shape says.
Steps of short prompts cannot tell tokens from pairs (they grow together), so without the second
one, what a long prompt takes would be noise, multiplied.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from headway.core.cost.arithmetic import Arithmetic
from headway.core.cost.least_squares import LeastSquares
from headway.core.sim.costs import MeasuredStep, StepCost, StepTable, position_in

KNOT_RATIO = 1.25  # between the last two numbers of rows that the table has values for
PULL = 1e-9  # only so that what was never seen to vary stays at zero
KILO = 1e-3  # pairs are counted in thousands, so that all unknowns are of one size
# The form itself is some percent wrong about steps, which does not average out over many of
# them; a shape's arithmetic may be half as much again. So what attention takes has to vary by more
# than some percent of a step's time before the steps are believed.
FORM_ERROR, SHAPE_ERROR = 0.05, 0.5
BEND = 1e-5  # of all steps' weight, against a line that turns by the slope of a prompt's token
PASSES = 8  # least squares with weights that make them least errors
LEAST_ERROR = 0.01  # below which all count the same
# Of the slowest steps so many are in no spread when they are off by so many times the median
# error: they were disturbed by what comes once or twice in a run, and tells of no other run.
RARE, OUTLIER = 0.05, 8.0
SPREAD_VALUES = 200


def fit(steps: Iterable[MeasuredStep], arithmetic: Arithmetic | None = None) -> StepTable:
    """The table for a model of that arithmetic; its spread leaves out steps far off the rest.

    Raises ValueError when there are no steps.
    """
    measured_steps = [step for step in steps if step.seconds > 0]
    if not measured_steps:
        raise ValueError("no step was measured")
    solver = _Solver(measured_steps, arithmetic or Arithmetic())
    table = solver.solve([1.0] * len(measured_steps))
    for _ in range(PASSES - 1):
        errors = (abs(step.seconds / table.seconds(step.work) - 1.0) for step in measured_steps)
        table = solver.solve([LEAST_ERROR / max(error, LEAST_ERROR) for error in errors])
    return msgspec.structs.replace(
        table,
        decode_spread=_spread(table, [s for s in measured_steps if not s.prefill_tokens]),
        prefill_spread=_spread(table, [s for s in measured_steps if s.prefill_tokens]),
    )


def relative_error(table: StepCost, step: MeasuredStep) -> float:
    """Predicted over measured, minus one."""
    return table.seconds(step.work) / step.seconds - 1.0


def _spread(table: StepTable, steps: Sequence[MeasuredStep]) -> tuple[float, ...]:
    """Measured over expected at SPREAD_VALUES shares of the steps, ascending."""
    ratios = sorted(step.seconds / table.seconds(step.work) for step in steps)
    if ratios:
        limit = OUTLIER * max(median(abs(ratio - 1.0) for ratio in ratios), LEAST_ERROR)
        most = ratios[int((1.0 - RARE) * (len(ratios) - 1))]
        ratios = [ratio for ratio in ratios if ratio <= max(most, 1.0 + limit)]
    count = min(SPREAD_VALUES, len(ratios))
    return tuple(round(ratios[(2 * i + 1) * len(ratios) // (2 * count)], 4) for i in range(count))


class _Solver:
    """Unknowns: what the line rises by up to each knot; a decode's pair; arithmetic of a pair."""

    def __init__(self, steps: Sequence[MeasuredStep], arithmetic: Arithmetic) -> None:
        self._steps = steps
        self._arithmetic = arithmetic
        self._token_rows = 1.0 / (1.0 + arithmetic.head_tokens)
        self._knots = _knots(max(self._rows(step) for step in steps))
        prompts = [step for step in steps if step.prefill_tokens] or steps
        # Seconds a token, roughly: what the weak equations are measured against.
        self._scale = median(step.seconds / self._rows(step) for step in prompts)

    def solve(self, weights: Sequence[float]) -> StepTable:
        """The table with the least squares, each step's by its weight."""
        size = len(self._knots) + 2
        equations = LeastSquares([0.0] * size, [PULL] * size, 1.0)
        all_weight = prompt_weight = 0.0
        for step, weight in zip(self._steps, weights, strict=True):
            all_weight += weight
            prompt_weight += weight * (step.prefill_tokens > 0)
            root = weight**0.5
            unit = root / step.seconds
            reads = step.decode_pairs - step.decode_shared
            pairs = step.prefill_pairs + step.decode_shared
            x = [*self._rises(self._rows(step)), KILO * reads, KILO * pairs]
            equations.add([unit * value for value in x], root)
        self._add_bends(equations, BEND * all_weight)
        self._add_shape(equations, (FORM_ERROR / SHAPE_ERROR) ** 2 * (prompt_weight or 1.0))
        *rises, decode_pair, pair = equations.solve()
        heights = [sum(rises[: index + 1]) for index in range(len(rises))]
        return StepTable(
            rows=tuple(zip(self._knots, heights, strict=True)),
            token_rows=self._token_rows,
            decode_pair_s=KILO * decode_pair,
            prefill_token_s=0.0,
            prefill_pair_s=KILO * pair,
        )

    def _rows(self, step: MeasuredStep) -> float:
        return max(1.0, step.decode_rows + self._token_rows * step.prefill_tokens)

    def _rises(self, rows: float) -> list[float]:
        """How far into each of the line's pieces it is, 0 to 1; the last goes on straight."""
        knots = self._knots
        index, share = position_in(knots, rows)
        return [1.0] * (index + 1) + [share] * (len(knots) > 1) + [0.0] * (len(knots) - index - 2)

    def _add_bends(self, equations: LeastSquares, weight: float) -> None:
        """The line goes on straight, in front of each knot but the ends."""
        knots, unit = self._knots, weight**0.5 / self._scale
        for index in range(1, len(knots) - 1):
            x = [0.0] * (len(knots) + 2)
            x[index] = -unit / (knots[index] - knots[index - 1])
            x[index + 1] = unit / (knots[index + 1] - knots[index])
            equations.add(x, 0.0)

    def _add_shape(self, equations: LeastSquares, weight: float) -> None:
        """A pair costs its share of what a prompt's token does, which is the line's slope."""
        knots, unit = self._knots, weight**0.5 / self._scale
        slope = unit * self._token_rows / max(1, knots[-1] - knots[0])
        rises = [0.0] + [-slope] * (len(knots) - 1)
        equations.add([*rises, 0.0, unit * KILO * self._arithmetic.pairs_a_token], 0.0)


def _knots(top: float) -> list[int]:
    """Numbers of rows with values of their own: powers of two, and the most that was seen."""
    last = max(1, round(top))
    powers = [1 << power for power in range(last.bit_length())]
    return [rows for rows in powers if KNOT_RATIO * rows <= last] + [last]
