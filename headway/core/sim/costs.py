"""What a simulated step costs: a table fitted to measured steps, or recorded times."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from random import Random
from typing import Protocol

import msgspec

from headway.core.base.units import Seconds
from headway.core.cost.work import StepWork, pairs_of
from headway.core.messages.step import StepPlan


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
    decode_shared: int = 0
    pause: float = 0.0  # from its end to the next plan, where that followed at once

    @property
    def work(self) -> StepWork:
        """What it did."""
        return StepWork(
            self.decode_rows,
            self.decode_pairs,
            self.prefill_tokens,
            self.prefill_pairs,
            self.decode_shared,
        )


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step as a sum of what its rows, tokens and pairs take.

    rows             (rows, seconds), ascending: the step without attention over the past; in
                     between it is interpolated, beyond the last it goes on straight
    token_rows       as how many decode rows a token of a prompt counts there: below 1, because
                     it gets no logits; 0 in tables of earlier versions
    decode_pair_s    for each position that a decode attends to, K and V read from memory
    prefill_token_s  for each token of a prompt, beside its part in the rows
    prefill_pair_s   for each position that a token of a prompt attends to, or that a decode
                     shares with another row: arithmetic alone
    *_spread         what steps really took over what the table says, at evenly spaced shares
                     of all steps without and with prompts; for SpreadCost
    """

    rows: tuple[tuple[int, float], ...]
    decode_pair_s: float
    prefill_token_s: float
    prefill_pair_s: float
    token_rows: float = 0.0
    decode_spread: tuple[float, ...] = ()
    prefill_spread: tuple[float, ...] = ()

    def seconds(self, work: StepWork) -> Seconds:
        """How long a step of that work takes."""
        return Seconds(
            self._rows_seconds(work.decode_rows + self.token_rows * work.prefill_tokens)
            + self.decode_pair_s * (work.decode_pairs - work.decode_shared)
            + self.prefill_token_s * work.prefill_tokens
            + self.prefill_pair_s * (work.prefill_pairs + work.decode_shared)
        )

    def _rows_seconds(self, num_rows: float) -> float:
        rows = self.rows
        if num_rows <= rows[0][0] or len(rows) == 1:
            return rows[0][1]
        index, share = position_in([count for count, _ in rows], num_rows)
        left, right = rows[index][1], rows[index + 1][1]
        return left + share * (right - left)


def position_in(knots: Sequence[int], value: float) -> tuple[int, float]:
    """The piece between two knots that a value is in, and how far: 0 to 1, more past the last.

    A value before the first knot is at its beginning.
    """
    index = min(max(0, bisect_left(knots, value) - 1), max(0, len(knots) - 2))
    if value <= knots[0] or len(knots) == 1:
        return 0, 0.0
    return index, (value - knots[index]) / (knots[index + 1] - knots[index])


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
        pairs = sum(plan.starts) + rows
        return StepWork(rows, pairs, decode_shared=min(plan.num_shared, pairs))
    work = StepWork()
    for start, num_tokens in zip(plan.starts, plan.num_tokens, strict=True):
        if num_tokens == 1:
            work.decode_rows += 1
            work.decode_pairs += start + 1
        else:
            work.prefill_tokens += num_tokens
            work.prefill_pairs += pairs_of(start, num_tokens)
    work.decode_shared = min(plan.num_shared, work.decode_pairs)
    return work


def measured(work: StepWork, seconds: float) -> MeasuredStep:
    """A step's work and its time, to be kept."""
    return MeasuredStep(
        decode_rows=work.decode_rows,
        decode_pairs=work.decode_pairs,
        prefill_tokens=work.prefill_tokens,
        prefill_pairs=work.prefill_pairs,
        decode_shared=work.decode_shared,
        seconds=seconds,
    )
