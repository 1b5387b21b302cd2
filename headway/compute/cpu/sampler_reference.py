"""The sampler's kernels in plain NumPy: for reading and for tests."""

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.sampler_kernels import BLOCK, BUCKET_SHIFT, NUM_BUCKETS, ONE_BITS, WINDOW

Ints = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


def keys(logits: Float32s) -> Ints:
    """Integers that sort as the logits do; NaN is the largest."""
    bits = logits.view(np.int32).astype(np.int64)
    signed = np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    return np.where(np.isnan(logits), 0x7FFFFFFF, signed)


def scan_rows(logits: Float32s) -> tuple[Ints, Ints]:
    """Best id of each row [S, V], -1 for one that is not finite; largest key of each block."""
    is_usable = np.isfinite(logits.max(axis=-1))
    best_ids = np.where(is_usable, logits.argmax(axis=-1), -1)
    starts = np.arange(0, logits.shape[1], BLOCK)
    return best_ids, np.maximum.reduceat(keys(logits), starts, axis=-1)


def collect(row: Float32s, lowest: int) -> Ints:
    """Ids of all tokens [V] whose key is so large, best first, equal ones by id."""
    found = keys(row)
    order = np.lexsort((np.arange(len(row)), -found))
    return order[found[order] >= lowest]


def weigh(row: Float32s, top: float, coldness: float) -> Floats:
    """Weights relative to a token of logit `top`."""
    weights: Floats = np.exp((row.astype(np.float64) - top) * coldness)
    return weights


def sum_windows(row: Float32s, top: float, coldness: float) -> Floats:
    """Sum of the weights of each window."""
    weights = weigh(row, top, coldness)
    return np.add.reduceat(weights, np.arange(0, len(row), WINDOW))


def sum_buckets(row: Float32s, top: float, coldness: float) -> Floats:
    """Sum of the weights by size."""
    weights = weigh(row, top, coldness)
    buckets = (ONE_BITS - weights.view(np.int64)) >> BUCKET_SHIFT
    sums: Floats = np.zeros(NUM_BUCKETS)
    np.add.at(sums, np.minimum(buckets, NUM_BUCKETS - 1), weights)
    return sums


def draw_by_id(row: Float32s, top: float, coldness: float, chance: float) -> int:
    """The token at `chance` of the whole row, in the order of ids."""
    cumulative = np.cumsum(weigh(row, top, coldness))
    return int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))
