"""From the scheduler's rows to the flat columns that an executor reads."""

from array import array

from headway.core.kv.tiers import Moves
from headway.core.messages.step import SamplingState, ScoreWork, StepPlan
from headway.core.sched.scheduler import Row


def build_plan(
    step: int, rows: list[Row], previous: StepPlan | None, moves: Moves, num_shared: int
) -> StepPlan:
    """Columns of one step; rows that end their sequence's known tokens are sampled.

    `previous` is the plan in flight, if there is one: a row whose input token it is
    sampling refers to that draw. Marks the draws as pending in their sequences.
    """
    token_ids = array("i")
    sample_rows, positions = array("i"), array("i")
    pending_rows, pending_from = array("i"), array("i")
    states: list[SamplingState] = []
    scores: list[ScoreWork] = []
    draws = _draws_of(previous)
    for index, row in enumerate(rows):
        sequence, end = row.sequence, row.start + row.num_tokens
        token_ids.extend(sequence.tokens[row.start : end])
        if sequence.num_pending and end > len(sequence.tokens):
            pending_rows.append(index)
            pending_from.append(draws[sequence.id])
            token_ids.append(0)  # replaced by the draw
        if end == len(sequence.tokens) + sequence.num_pending:
            sample_rows.append(index)
            positions.append(end - sequence.num_prompt)
            states.append(sequence.sampling_state)
            sequence.num_pending += 1
        if score := _score_work(index, row):
            scores.append(score)
    return StepPlan(
        step=step,
        tables=array("i", [_grid_row(row) for row in rows]),
        starts=array("i", [row.start for row in rows]),
        num_tokens=array("i", [row.num_tokens for row in rows]),
        token_ids=token_ids,
        sequence_ids=tuple(row.sequence.id for row in rows),
        copies=tuple(copy for row in rows for copy in row.copies),
        sample_rows=sample_rows,
        positions=positions,
        states=tuple(states),
        pending_rows=pending_rows,
        pending_from=pending_from,
        scores=tuple(scores),
        saves=moves.saves,
        loads=moves.loads,
        num_shared=num_shared,
    )


def _draws_of(plan: StepPlan | None) -> dict[int, int]:
    """Sequence id -> index of its draw in the plan in flight."""
    if plan is None:
        return {}
    return {plan.sequence_ids[row]: draw for draw, row in enumerate(plan.sample_rows)}


def _grid_row(row: Row) -> int:
    table = row.sequence.table
    assert table is not None, f"sequence {row.sequence.id} is planned without a table"
    return table.row


def _score_work(index: int, row: Row) -> ScoreWork | None:
    """Prompt tokens of this row to score: only the first choice does it, and only once."""
    sequence = row.sequence
    sampling = sequence.group.request.sampling
    if not sampling.prompt_logprobs or sequence.choice != 0:
        return None
    end = min(row.start + row.num_tokens + 1, sequence.num_prompt)
    targets = array("i", sequence.tokens[row.start + 1 : end])
    return ScoreWork(index, targets, sampling.num_logprobs or 0) if targets else None
