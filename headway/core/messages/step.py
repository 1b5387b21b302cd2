"""What one step should do, and what it did.

A plan is complete: it names every position, block, copy and draw. The executor keeps no
memory of who used a slot before, so a new sequence cannot inherit an old one's position.
Columns are flat arrays ("i" is a 32-bit int), because a struct a row costs milliseconds
at 256 sequences. Plan and result stay inside one process.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.messages.path import Sampling, TokenLogprob


class BlockCopy(NamedTuple):
    """Copy the KV of a whole block, all layers, before anything of the step is computed.

    All sources of a plan are read before any target is written; no two have one target.
    """

    source: int
    target: int


class BlockMove(NamedTuple):
    """Copy the KV of a whole block, all layers, between the device and the host tier."""

    device: int
    host: int


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What the draws of one sequence depend on; made once, lent to every plan.

    `tokens` is the sequence's own growing list, prompt first. A draw for output position
    p may read only `tokens[: num_prompt + p]`; with a step in flight the last of these
    is the token that step samples (see `StepPlan.pending_rows`).
    """

    sampling: Sampling
    choice: int  # part of the key of every draw, so that choices differ
    tokens: Sequence[int]
    num_prompt: int
    end_ids: tuple[int, ...]  # masked while position < sampling.min_tokens


class ScoreWork(NamedTuple):
    """Score prompt tokens: for each position of a row, the token that follows it."""

    row: int  # index into the plan's columns
    targets: "array[int]"  # next token's id; may be shorter than the row by one at the prompt's end
    num_top: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step over R rows; row r computes positions starts[r] .. starts[r] + num_tokens[r] - 1.

    tables        [R]  the row's line in the block-table grid
    starts        [R]  position of the row's first token
    num_tokens    [R]  >= 1; 1 is plain decode
    token_ids     [sum(num_tokens)]  input tokens, row after row
    saves              blocks to copy from the device to the host tier, before anything else
    loads              blocks to copy back, after all saves; no two have one target
    copies             block copies to do then, before anything is computed
    sample_rows   [S]  rows whose last position's logits are drawn from, ascending
    positions     [S]  output position of each draw: 0 is the first token after the prompt
    states        [S]  parameters and history of each draw
    pending_rows  [P]  rows whose one input token is not known yet ...
    pending_from  [P]  ... but sampled by the previous step, as its pending_from-th draw
    scores             prompt tokens to score
    num_shared         positions that block tables list beyond once: rows read the same K and V
    """

    step: int
    tables: "array[int]"
    starts: "array[int]"
    num_tokens: "array[int]"
    token_ids: "array[int]"
    sequence_ids: tuple[int, ...]  # [R] for commit and traces; the executor ignores them
    copies: tuple[BlockCopy, ...] = ()
    sample_rows: "array[int]" = field(default_factory=lambda: array("i"))
    positions: "array[int]" = field(default_factory=lambda: array("i"))
    states: tuple[SamplingState, ...] = ()
    pending_rows: "array[int]" = field(default_factory=lambda: array("i"))
    pending_from: "array[int]" = field(default_factory=lambda: array("i"))
    scores: tuple[ScoreWork, ...] = ()
    saves: tuple[BlockMove, ...] = ()
    loads: tuple[BlockMove, ...] = ()
    num_shared: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step drew: one token a sampled row, in the plan's order.

    num_host_blocks  blocks of the host tier that there is memory for now; never falls
    moves_s          seconds that the plan's saves and loads took
    """

    step: int
    token_ids: "array[int]"  # [S]
    logprobs: tuple[TokenLogprob | None, ...]  # [S], None where not asked for
    scores: tuple[tuple[TokenLogprob, ...], ...] = ()  # one inner tuple a ScoreWork
    num_host_blocks: int = 0
    moves_s: float = 0.0
