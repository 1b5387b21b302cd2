"""Chunked prefill: how much of a gap fits into what is left of a step.

Prompts are cut so that decodes are never held up by a whole one (Agrawal et al. 2024,
Sarathi-Serve, section 4). A chunk is bounded by tokens, and while streams are running also by
time: the same number of tokens takes longer the further into a prompt they lie.
"""

from headway.core.base.units import Seconds
from headway.core.cost.fitted import FittedCost
from headway.core.cost.work import StepWork

# Predictions are some percent wrong, and the target is for 99 of 100 steps, sending included.
SHARE_OF_TARGET = 0.85
# A step whose decodes alone come near the target takes so much longer for prompts all the same:
# they must come to an end.
LEAST_SHARE = 0.5
LEAST_CHUNK = 16  # tokens: fewer cost hardly less
GRAIN = 16  # kernels work on so many rows at a time


class StepBudget:
    """What is left of the step being planned: tokens, and seconds while streams run."""

    def __init__(self, max_tokens: int, itl_target: Seconds | None = None) -> None:
        """`itl_target` is the longest step that a running stream should wait for."""
        self.cost = FittedCost()
        self.work = StepWork()
        self.num_left = max_tokens
        self.share = 1.0  # of the time that the step may take, for the prompts planned now
        self._max_tokens = max_tokens
        self._itl_target = itl_target

    def begin(self) -> None:
        """A new step."""
        self.work = StepWork()
        self.num_left = self._max_tokens
        self.share = 1.0

    def chunk(self, start: int, gap: int) -> int:
        """Tokens to compute now of the `gap` that begins at position `start`."""
        num_tokens = min(gap, self.num_left)
        target = self._itl_target
        if num_tokens <= 1 or target is None or (not self.work.decode_rows and self.share == 1.0):
            return max(0, num_tokens)
        if not self.cost.knows_prefill:
            return num_tokens
        return self._within(self._seconds_for(target), start, num_tokens)

    def full_chunk(self) -> int:
        """Tokens from a prompt's beginning that fit a step of their own, as measured."""
        if self._itl_target is None or not self.cost.knows_prefill:
            return self._max_tokens
        seconds = self.cost.seconds(StepWork(prefill_tokens=1))
        own = seconds - self.cost.decode_seconds(StepWork())
        fits = SHARE_OF_TARGET * self._itl_target / own if own > 0.0 else self._max_tokens
        return max(LEAST_CHUNK, min(self._max_tokens, int(fits)))

    def take(self, start: int, num_tokens: int) -> None:
        """A row was planned."""
        self.num_left -= num_tokens
        self.work.add(start, num_tokens)

    def give_back(self, start: int, num_tokens: int) -> None:
        """It is not computed after all."""
        self.num_left += num_tokens
        self.work.add(start, num_tokens, -1)

    def _seconds_for(self, target: Seconds) -> float:
        decode = self.cost.decode_seconds(self.work)
        return max(self.share * SHARE_OF_TARGET * target, (1.0 + LEAST_SHARE) * decode)

    def _within(self, seconds: float, start: int, most: int) -> int:
        """The most tokens, in whole grains, with which the step takes `seconds` at most.

        None when another prompt has its chunk in this step already; the first always has one.
        """
        if self._predict(start, most) <= seconds:
            return most
        low, high = 0, most // GRAIN  # in grains; low fits, or is nothing
        while low < high:
            middle = (low + high + 1) // 2
            if self._predict(start, GRAIN * middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        if not low and not self.work.prefill_tokens:
            return min(most, LEAST_CHUNK)
        return GRAIN * low

    def _predict(self, start: int, num_tokens: int) -> float:
        self.work.add(start, num_tokens)
        seconds = self.cost.seconds(self.work)
        self.work.add(start, num_tokens, -1)
        return seconds
