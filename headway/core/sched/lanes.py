"""Lanes: short prompts and the slow lane, so that a short one never waits for a long one to end.

Long prompts and long answers share a bounded part of each step's prompt tokens, as long as
short ones of the same class have something to compute, and leave a few slots to the others.
"""

import math
from typing import NamedTuple

from headway.core.messages.path import EngineRequest
from headway.core.sched.chunks import StepBudget

# Slots that the slow lane leaves free, one of so many: it is what a short request waits for at
# most. With fewer slots than this, none is kept.
KEPT_SLOT_EVERY = 8
# A prompt is long when it takes more full steps than this, by what was measured: short ones
# behind it would wait as long.
LONG_STEPS = 6


class LaneSettings(NamedTuple):
    """What counts as long, in tokens, and how much of a step the long ones may share."""

    long_prompt: int | None  # None: what takes more than LONG_STEPS steps
    long_output: int
    share: float  # of the prompt tokens of a step; 1 is no lanes
    max_model_len: int


class Lanes:
    """How much of a step each prompt may have: what is left of it, and of its lane."""

    def __init__(self, settings: LaneSettings, budget: StepBudget, max_num_seqs: int) -> None:
        self._settings = settings
        self.budget = budget
        self.max_long = max_num_seqs - max_num_seqs // KEPT_SLOT_EVERY
        self._left: float | None = None  # tokens of the slow lane; None: nobody has asked yet
        self.was_short = False  # a long one got less than it could have used

    def is_long(self, request: EngineRequest) -> bool:
        """Whether it goes by the slow lane.

        An answer that may fill the context says nothing about its length: its client just set
        no limit.
        """
        prompt, answer = len(request.prompt), request.sampling.max_tokens
        is_limited = prompt + answer < self._settings.max_model_len
        long_answer = is_limited and answer > self._settings.long_output
        most = self._settings.long_prompt
        if most is None:
            most = LONG_STEPS * self.budget.full_chunk()
        return prompt > most or long_answer

    def open(self) -> None:
        """A class begins to compute prompts."""
        self._left = None
        self.was_short = False

    def lift(self) -> None:
        """The short ones have what they need: the rest is anybody's."""
        self._left = math.inf

    def chunk(self, start: int, gap: int, *, is_long: bool) -> int:
        """Tokens to compute now of the `gap` that begins at position `start`."""
        most = self.budget.chunk(start, gap)
        if not is_long or gap == 1:
            return most
        if self._left is None:
            whole = self.budget.chunk(start, max(1, self.budget.num_left))
            self._left = math.ceil(whole * self._settings.share)
        if most <= self._left:
            return most
        self.was_short = True
        return int(self._left)

    def spend(self, tokens: int) -> None:
        """So many are being computed of long ones; negative when they are not after all."""
        if self._left is not None:
            self._left -= tokens
