"""A sequence: tokens known, tokens computed, and the states between arrival and end.

One idea covers all work. A sequence knows its prompt and whatever has been sampled, and it
has computed KV for the first of them. A step closes the gap. Prefill, a chunk of it, decode,
a prefix hit and the recomputation after a preemption differ only in how wide the gap is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headway.core.base.units import Seconds
from headway.core.kv.table import BlockTable
from headway.core.messages.path import Emitted, EngineRequest, TokenLogprob
from headway.core.messages.step import SamplingState


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # has a block table
    FINISHED = "finished"


NEXT: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


@dataclass(slots=True)
class Standing:
    """What its order and its protection go by."""

    deadline: float = math.inf  # replica clock; for the first token
    rank: int = 1  # its class, or a more important one once it has waited long; never falls
    waiting_since: float = 0.0  # replica clock
    waited: float = 0.0  # seconds, over all times that it waited before
    is_long: bool = False  # goes by the slow lane
    num_preempted: int = 0
    num_charged: int = 0  # leading tokens that its tenant's share has paid for
    num_reached: int = 0  # leading tokens that were computed at least once


@dataclass(slots=True)
class Account:
    """What a request has taken so far, over all of its choices."""

    device_s: float = 0.0  # its share, by tokens, of the steps that it was part of
    num_chunks: int = 0  # steps that its prompt took
    recomputed_tokens: int = 0
    cached_host_tokens: int = 0
    preemptions: int = 0
    preemptions_swapped: int = 0

    def computed(self, sequence: "Sequence", start: int, end: int, seconds: float) -> None:
        """A step computed positions start .. end - 1 of one of its choices, in so much time."""
        self.device_s += seconds
        reached = sequence.standing.num_reached
        if start < reached:
            self.recomputed_tokens += min(end, reached) - start
        if end > reached:
            if start < sequence.num_prompt and sequence is sequence.leader:
                self.num_chunks += 1
            sequence.standing.num_reached = end

    def stopped(self, *, is_kept: bool) -> None:
        """One of its choices gave way to others."""
        self.preemptions += 1
        self.preemptions_swapped += is_kept


class RequestGroup:
    """A request inside the engine: its choices, and when things happened to it."""

    __slots__ = (
        "account",
        "arrived",
        "cached_tokens",
        "first_planned",
        "first_token",
        "request",
        "scores",
        "sequences",
    )

    def __init__(self, request: EngineRequest, arrived: Seconds) -> None:
        self.request = request
        self.arrived = arrived
        self.first_planned: Seconds | None = None
        self.first_token: Seconds | None = None
        self.cached_tokens = 0
        self.account = Account()
        self.sequences: list[Sequence] = []
        # Log-probabilities of prompt tokens; the first token has none.
        self.scores: list[TokenLogprob | None] = [None]


class Sequence:
    """One choice of a request. Changed by Scheduler and EngineCore only."""

    __slots__ = (
        "group",
        "id",
        "names",
        "num_computed",
        "num_pending",
        "num_planned",
        "num_prompt",
        "sampling_state",
        "standing",
        "state",
        "table",
        "tokens",
    )

    def __init__(
        self, sequence_id: int, group: RequestGroup, choice: int, end_ids: tuple[int, ...]
    ) -> None:
        self.id = sequence_id  # rises with arrival
        self.group = group
        self.tokens = list(group.request.prompt)  # known: the prompt, then what was sampled
        self.num_prompt = len(self.tokens)
        self.num_computed = 0  # leading tokens whose KV is there
        self.num_planned = 0  # the same, counting steps in flight
        self.num_pending = 0  # tokens being sampled by steps in flight
        self.state = State.WAITING
        self.table: BlockTable | None = None
        self.names: list[bytes] = []  # of its full blocks, made once; known tokens never change
        self.sampling_state = SamplingState(
            sampling=group.request.sampling,
            choice=choice,
            tokens=self.tokens,
            num_prompt=self.num_prompt,
            end_ids=end_ids,
        )
        budget = group.request.first_token_budget_s
        self.standing = Standing(
            deadline=math.inf if budget is None else group.arrived + budget,
            rank=group.request.slo_class,
            waiting_since=group.arrived,
        )

    @property
    def choice(self) -> int:
        """Which of the request's choices it is."""
        return self.sampling_state.choice

    @property
    def is_lifted(self) -> bool:
        """True once ageing has given it a rank above its class."""
        return self.standing.rank < self.group.request.slo_class

    @property
    def num_outputs(self) -> int:
        """Tokens sampled and known."""
        return len(self.tokens) - self.num_prompt

    @property
    def gap(self) -> int:
        """Tokens that a step could compute now, the one being sampled included."""
        return len(self.tokens) + self.num_pending - self.num_planned

    @property
    def wants_step(self) -> bool:
        """False once the last token that it may have is being sampled."""
        return self.num_outputs + self.num_pending < self.group.request.sampling.max_tokens

    @property
    def leader(self) -> "Sequence":
        """The choice that computes the prompt for all."""
        return self.group.sequences[0]

    def move(self, to: State) -> None:
        """Change state; an illegal move is a bug and fails with both names."""
        assert to in NEXT[self.state], f"sequence {self.id}: {self.state.name} -> {to.name}"
        self.state = to

    def go_on(self, emitted: Emitted) -> State:
        """Begin where another replica lost it; FINISHED if it had ended there."""
        self.tokens += emitted.token_ids
        if emitted.token_ids:
            self.standing.num_reached = len(self.tokens) - 1  # where it was lost
        if emitted.finish_reason is not None:
            self.move(State.FINISHED)
        return self.state

    def forget_steps(self) -> None:
        """Its blocks are gone: nothing is computed, and steps in flight do not count."""
        self.table = None
        self.num_computed = self.num_planned = self.num_pending = 0
