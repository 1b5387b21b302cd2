"""What a simulated step costs: a table fitted from measured steps, or recorded times."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from statistics import median
from typing import Protocol

import msgspec

from headway.core.base.units import Seconds
from headway.core.cost.least_squares import LeastSquares
from headway.core.cost.work import StepWork, pairs_of
from headway.core.messages.step import StepPlan

KNOT_RATIO = 1.25  # between the numbers of rows that the table has values for
KNOT_STEPS = 3  # steps that must have been measured with that number of rows
PULL = 1e-9  # only so that what was never seen to vary stays at zero
KILO = 1e-3  # pairs are counted in thousands, so that all unknowns are of one size
OUTLIER = 5.0  # times the median deviation; such steps were disturbed
PASSES = 3
SPREAD_VALUES = 200


class StepCost(Protocol):
    """Seconds of a step."""

    def seconds(self, work: StepWork) -> Seconds:
        """How long a step of that work takes."""
        ...


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step that really ran: its work as in StepWork, and its duration."""

    decode_rows: int
    decode_pairs: int
    prefill_tokens: int
    prefill_pairs: int
    seconds: float
    pause: float = 0.0  # from its end to the next plan, where that followed at once

    @property
    def work(self) -> StepWork:
        """What it did."""
        return StepWork(
            self.decode_rows, self.decode_pairs, self.prefill_tokens, self.prefill_pairs
        )


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step as a sum of what its rows, tokens and pairs take.

    rows             (decode rows, seconds), ascending: the step without attention over the
                     past; in between it is interpolated, beyond the last it goes on straight
    decode_pair_s    for each position that a decode attends to
    prefill_token_s  for each token of a prompt
    prefill_pair_s   for each position that a token of a prompt attends to
    *_spread         what steps really took over what the table says, at evenly spaced shares
                     of all steps without and with prompts; for SpreadCost
    """

    rows: tuple[tuple[int, float], ...]
    decode_pair_s: float
    prefill_token_s: float
    prefill_pair_s: float
    decode_spread: tuple[float, ...] = ()
    prefill_spread: tuple[float, ...] = ()

    def seconds(self, work: StepWork) -> Seconds:
        """How long a step of that work takes."""
        return Seconds(
            self._rows_seconds(work.decode_rows)
            + self.decode_pair_s * work.decode_pairs
            + self.prefill_token_s * work.prefill_tokens
            + self.prefill_pair_s * work.prefill_pairs
        )

    def _rows_seconds(self, num_rows: int) -> float:
        left = self.rows[0]
        if num_rows <= left[0] or len(self.rows) == 1:
            return left[1]
        for right in self.rows[1:]:
            if num_rows <= right[0]:
                break
            left = right
        else:
            left, right = self.rows[-2:]
        share = (num_rows - left[0]) / (right[0] - left[0])
        return left[1] + share * (right[1] - left[1])


class SpreadCost:
    """A table whose steps take more or less by chance, as much as the measured ones did.

    Without it the slow steps are missing that make a P99.
    """

    def __init__(self, table: StepTable, rng: Random) -> None:
        self._table = table
        self._rng = rng

    def seconds(self, work: StepWork) -> Seconds:
        """How long one step of that work takes this time."""
        expected = self._table.seconds(work)
        spread = self._table.prefill_spread if work.prefill_tokens else self._table.decode_spread
        return Seconds(expected * self._rng.choice(spread)) if spread else expected


class RecordedSteps:
    """The durations of a recorded run, one after the other.

    `mismatches` counts the steps whose work was not that of the recorded one; a step past the
    end of the record is one too, and takes as long as the last.
    """

    def __init__(self, steps: Sequence[MeasuredStep]) -> None:
        self._steps: Iterator[MeasuredStep] = iter(steps)
        self._last = Seconds(0.0)
        self._last_pause = Seconds(0.0)
        self.num_taken = 0
        self.mismatches = 0

    def seconds(self, work: StepWork) -> Seconds:
        """The next step's recorded time."""
        step = next(self._steps, None)
        self.num_taken += 1
        if step is None or step.work != work:
            self.mismatches += 1
        if step is not None:
            self._last, self._last_pause = Seconds(step.seconds), Seconds(step.pause)
        return self._last

    def pause(self) -> Seconds:
        """From the end of the step that was taken last to the next plan."""
        return self._last_pause


def work_of(plan: StepPlan) -> StepWork:
    """The work of a plan; O(rows)."""
    rows = len(plan.starts)
    if len(plan.token_ids) == rows:  # nothing but decodes, as in nearly every step
        return StepWork(rows, sum(plan.starts) + rows)
    work = StepWork()
    for start, num_tokens in zip(plan.starts, plan.num_tokens, strict=True):
        if num_tokens == 1:
            work.decode_rows += 1
            work.decode_pairs += start + 1
        else:
            work.prefill_tokens += num_tokens
            work.prefill_pairs += pairs_of(start, num_tokens)
    return work


def measured(work: StepWork, seconds: float) -> MeasuredStep:
    """A step's work and its time, to be kept."""
    return MeasuredStep(
        decode_rows=work.decode_rows,
        decode_pairs=work.decode_pairs,
        prefill_tokens=work.prefill_tokens,
        prefill_pairs=work.prefill_pairs,
        seconds=seconds,
    )


def fit(steps: Iterable[MeasuredStep]) -> StepTable:
    """The table with the least relative error; steps far off the rest are left out.

    Raises ValueError when there are no steps.
    """
    measured_steps = [step for step in steps if step.seconds > 0]
    if not measured_steps:
        raise ValueError("no step was measured")
    kept, table = measured_steps, _solve(measured_steps)
    for _ in range(PASSES - 1):
        errors = [abs(relative_error(table, step)) for step in kept]
        limit = OUTLIER * max(median(errors), 1e-6)
        kept = [step for step, error in zip(kept, errors, strict=True) if error <= limit]
        table = _solve(kept)
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
    count = min(SPREAD_VALUES, len(ratios))
    return tuple(round(ratios[(2 * i + 1) * len(ratios) // (2 * count)], 4) for i in range(count))


def _solve(steps: Sequence[MeasuredStep]) -> StepTable:
    knots = _knots(steps)
    size = len(knots) + 3
    # Decodes and prompts both read the weights: a step without decodes costs what one row does.
    equations = LeastSquares([0.0] * size, [PULL] * size, 1.0)
    for step in steps:
        x = [*_hats(knots, step.decode_rows), KILO * step.decode_pairs]
        x += [float(step.prefill_tokens), KILO * step.prefill_pairs]
        equations.add([value / step.seconds for value in x], 1.0)
    *rows, decode_pair, prefill_token, prefill_pair = equations.solve()
    return StepTable(
        rows=tuple(zip(knots, rows, strict=True)),
        decode_pair_s=KILO * decode_pair,
        prefill_token_s=prefill_token,
        prefill_pair_s=KILO * prefill_pair,
    )


def _knots(steps: Sequence[MeasuredStep]) -> list[int]:
    """Numbers of rows that were measured often enough to have a value of their own."""
    seen = Counter(max(1, step.decode_rows) for step in steps)
    often = sorted(rows for rows, count in seen.items() if count >= KNOT_STEPS) or sorted(seen)
    knots = often[:1]
    for rows in often[1:]:
        if rows >= KNOT_RATIO * knots[-1]:
            knots.append(rows)
    return knots


def _hats(knots: Sequence[int], num_rows: int) -> list[float]:
    """Weights of linear interpolation between the knots."""
    weights = [0.0] * len(knots)
    if num_rows <= knots[0]:
        weights[0] = 1.0
        return weights
    for index in range(1, len(knots)):
        if num_rows <= knots[index]:
            share = (num_rows - knots[index - 1]) / (knots[index] - knots[index - 1])
            weights[index - 1], weights[index] = 1.0 - share, share
            return weights
    weights[-1] = 1.0
    return weights
