"""Lanes: short prompts and the slow lane, so that a short one never waits for a long one to end.

Long prompts and long answers share a bounded part of each step's prompt tokens, as long as
short ones of the same class have something to compute, and leave a few slots to the others.
"""

import math
from typing import NamedTuple

from headway.core.messages.path import EngineRequest

# Slots that the slow lane leaves free, one of so many: it is what a short request waits for at
# most. With fewer slots than this, none is kept.
KEPT_SLOT_EVERY = 8


class LaneSettings(NamedTuple):
    """What counts as long, in tokens, and how much of a step the long ones may share."""

    long_prompt: int
    long_output: int
    share: float  # of the prompt tokens of a step; 1 is no lanes


class Lanes:
    """The part of a step that is left to the slow lane."""

    def __init__(self, settings: LaneSettings, max_num_seqs: int, max_model_len: int) -> None:
        self._settings = settings
        self._max_model_len = max_model_len
        self.max_long = max_num_seqs - max_num_seqs // KEPT_SLOT_EVERY
        self._left = 0
        self.was_short = False  # a long one got less than it could have used

    def is_long(self, request: EngineRequest) -> bool:
        """Whether it goes by the slow lane.

        An answer that may fill the context says nothing about its length: its client just set
        no limit.
        """
        prompt, answer = len(request.prompt), request.sampling.max_tokens
        is_limited = prompt + answer < self._max_model_len
        long_answer = is_limited and answer > self._settings.long_output
        return prompt > self._settings.long_prompt or long_answer

    def open(self, budget: int) -> None:
        """A class begins to compute prompts with so many tokens of the step left."""
        self._left = math.ceil(budget * self._settings.share)
        self.was_short = False

    def lift(self) -> None:
        """The short ones have what they need: the rest is anybody's."""
        self._left = 1 << 62

    def allow(self, is_long: bool, wanted: int) -> int:
        """How many of the wanted tokens it may compute."""
        if not is_long or wanted <= self._left:
            return wanted
        self.was_short = True
        return self._left

    def spend(self, is_long: bool, tokens: int) -> None:
        """So many are being computed; negative when they are not after all."""
        if is_long:
            self._left -= tokens
