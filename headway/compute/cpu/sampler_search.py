"""Finds what a draw needs to know of the rows of a step, without sorting the vocabulary."""

import math

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.sampler_kernels import (
    BLOCK,
    BUCKET_SHIFT,
    INFINITE,
    NUM_BUCKETS,
    ONE_BITS,
    WINDOW,
    collect,
    draw_by_id,
    scan_rows,
    sum_buckets,
    sum_windows,
)
from headway.compute.sampling.adjustments import MASKED
from headway.compute.sampling.filters import FIRST_CANDIDATES, choose, is_decided, is_filtered
from headway.core.messages.path import Sampling

LOWEST = -INFINITE  # key that every logit but NaN reaches

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


class Search:
    """The rows of one call [S, V], with scratch that they share; for one thread.

    A key is an integer that sorts as the logit does (see `sampler_kernels.key_of`).
    """

    def __init__(self, logits: Float32s) -> None:
        """Scan all rows; the logits are C-contiguous and stay the caller's."""
        num_rows, size = logits.shape
        self._logits = logits
        self._bits = logits.view(np.int32)
        self._maxima = np.empty((num_rows, -(-size // BLOCK)), dtype=np.int32)
        self._found = np.empty(size, dtype=np.int64)
        self._masses = np.empty(-(-size // WINDOW))
        self._weights = np.empty(WINDOW)
        self.best_ids: Ints = np.empty(num_rows, dtype=np.int64)  # -1: not finite
        scan_rows(self._bits, self.best_ids, self._maxima)

    def rescan(self, index: int) -> None:
        """Look at a row again that has been changed."""
        row = slice(index, index + 1)
        scan_rows(self._bits[row], self.best_ids[row], self._maxima[row])

    def top(self, index: int) -> float:
        """The largest logit of a row."""
        return float(self._logits[index, self.best_ids[index]])

    def total(self, index: int, temperature: float) -> float:
        """Sum of the weights of a row, relative to the best one's."""
        return float(
            sum_windows(
                self._logits[index], self.top(index), 1.0 / temperature, self._masses, self._weights
            )
        )

    def best(self, index: int, count: int) -> tuple[Floats, Ints]:
        """At least `count` best tokens of a row, if it has so many: see `_at_least`."""
        maxima, row = self._maxima[index], self._logits[index]
        if count >= len(row):
            return self._at_least(index, LOWEST)
        if count > len(maxima):
            return self._at_least(index, _key(float(_largest(row, count))))
        # As many blocks have a token that reaches the count-th largest maximum.
        return self._at_least(index, int(_largest(maxima, count)))

    def draw(self, index: int, sampling: Sampling, chance: float) -> int:
        """The token at `chance` (in [0, 1)) of the row's filtered distribution.

        Tokens are laid out best first (equal ones by id), or by id when nothing is filtered.
        """
        if not is_filtered(sampling):
            return self._draw_by_id(index, 1.0 / sampling.temperature, chance)
        if sampling.top_k > 0:
            values, ids = self.best(index, sampling.top_k)
            return int(ids[choose(values, None, sampling, chance)])
        if sampling.top_p >= 1.0:
            values, ids = self._at_least(index, self._lowest_that_may_pass(index, sampling, 0.0))
            return int(ids[choose(values, None, sampling, chance)])
        total = self.total(index, sampling.temperature)
        values, ids = self.best(index, FIRST_CANDIDATES)
        if len(ids) < self._logits.shape[1] and not is_decided(values, total, sampling):
            values, ids = self._at_least(index, self._lowest_that_may_pass(index, sampling, total))
        return int(ids[choose(values, total, sampling, chance)])

    def _at_least(self, index: int, lowest: int) -> tuple[Floats, Ints]:
        """Logits and ids of all tokens whose key is so large, best first, equal ones by id."""
        count = collect(self._bits[index], self._maxima[index], lowest, self._found)
        found = self._found[:count]
        found.sort()
        ids = found & 0xFFFFFFFF
        return self._logits[index, ids].astype(np.float64), ids

    def _draw_by_id(self, index: int, coldness: float, chance: float) -> int:
        row, top = self._logits[index], self.top(index)
        return int(draw_by_id(row, top, coldness, chance, self._masses, self._weights))

    def _lowest_that_may_pass(self, index: int, sampling: Sampling, total: float) -> int:
        """A key that every token has which top-p and min-p let pass."""
        smallest = sampling.min_p
        top = self.top(index)
        if sampling.top_p < 1.0:
            buckets = np.zeros(NUM_BUCKETS)
            coldness = 1.0 / sampling.temperature
            sum_buckets(self._logits[index], top, coldness, buckets, self._weights)
            last = int(np.searchsorted(np.cumsum(buckets), sampling.top_p * total))
            if last < NUM_BUCKETS - 1:
                edge = np.int64(ONE_BITS - ((last + 1) << BUCKET_SHIFT))
                smallest = max(smallest, float(edge.view(np.float64)))
        if smallest == 0.0:
            return LOWEST
        bound = top + sampling.temperature * math.log(smallest)
        bound -= 1e-5 * max(abs(bound), abs(top))  # the logits are rounded
        return _key(max(bound, MASKED))


def _largest(values: Float32s | Int32s, count: int) -> np.float32 | np.int32:
    """The count-th largest."""
    place = len(values) - count
    found: np.float32 | np.int32 = np.partition(values, place)[place]
    return found


def _key(logit: float) -> int:
    bits = int(np.float32(logit).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)
