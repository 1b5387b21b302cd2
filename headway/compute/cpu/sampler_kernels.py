"""Passes over a row of logits: which are largest, and how much probability lies where.

A row's results depend on that row only. Blocks are slices whose loops begin at 0, because
an index that Numba cannot prove to be positive costs eight times as much.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import contracted, inlined, kernel

BLOCK = 64  # logits of which one maximum is kept
WINDOW = 512  # logits whose weights are summed as one tree; also the size of the scratch

# Buckets of the weight's exponent and the first six bits of its fraction: 64 an octave. The
# last bucket holds all that is below 2^-60 of the best.
BUCKETS_AN_OCTAVE = 64
NUM_BUCKETS = 60 * BUCKETS_AN_OCTAVE
BUCKET_SHIFT = 52 - 6

MAGNITUDE = np.int32(0x7FFFFFFF)
SIGN_SHIFT = np.int32(31)
INFINITY_BITS = np.int32(0x7F800000)
INFINITE = 0x7F800000  # key of +inf; that of -inf is its negative
NAN_KEY = np.int32(0x7FFFFFFF)
LOWEST_KEY = np.int32(-0x80000000)

ONE_BITS = 1023 << 52  # float64 1.0
ROUND_TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the integer in the low bits
LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01  # 32 bits, so that its multiples by integers are exact
LN2_LOW = 1.90821492927058770002e-10
SMALLEST_EXPONENT = -700.0  # what is less likely than e^-700 has the weight 0
TAYLOR = tuple(1.0 / math.factorial(n) for n in range(12))  # 7e-15 off at ln(2) / 2

Bits = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


@inlined
def key_of(bits: Any) -> Any:
    """An int32 that sorts as the float32 of these bits does; both zeros are 0.

    NaN of either sign is NAN_KEY, above +inf, so that a maximum shows it.
    """
    magnitude = np.int32(bits & MAGNITUDE)
    sign = np.int32(bits >> SIGN_SHIFT)
    key = np.int32((magnitude ^ sign) - sign)
    return NAN_KEY if magnitude > INFINITY_BITS else key


@kernel
def scan_rows(bits: Bits, best_ids: Ints, maxima: Bits) -> None:
    """Each row's best token (equal ones by id), and the largest key of each block.

    bits      [S, V]  the logits' own bits
    best_ids  [S]     -1 for a row with a NaN, with +inf, or with nothing finite
    maxima    [S, ceil(V / BLOCK)]
    """
    for index in range(bits.shape[0]):
        row = bits[index]
        best = LOWEST_KEY
        best_block = 0
        for block in range(maxima.shape[1]):
            part = row[block * BLOCK : min((block + 1) * BLOCK, row.shape[0])]
            largest = LOWEST_KEY
            for place in range(part.shape[0]):
                key = key_of(part[place])
                largest = key if key > largest else largest
            maxima[index, block] = largest
            if largest > best:
                best = largest
                best_block = block
        if best >= INFINITE or best <= -INFINITE:
            best_ids[index] = -1
            continue
        found = best_block * BLOCK
        while key_of(row[found]) != best:
            found += 1
        best_ids[index] = found


@kernel
def collect(bits: Bits, maxima: Bits, lowest: int, found: Ints) -> int:
    """Number of tokens of one row whose key is at least `lowest`; `found` gets an int64 each.

    bits    [V]
    maxima  [ceil(V / BLOCK)]  as `scan_rows` left it
    found   [V]  sorted ascending, best first and equal ones by id; the id is the low 32 bits
    """
    count = 0
    for block in range(maxima.shape[0]):
        if maxima[block] < lowest:
            continue
        part = bits[block * BLOCK : min((block + 1) * BLOCK, bits.shape[0])]
        for place in range(part.shape[0]):
            key = np.int64(key_of(part[place]))
            if key >= lowest:
                found[count] = (-key << 32) | (block * BLOCK + place)
                count += 1
    return count


@inlined
def exponential(exponent: Any) -> Any:
    """e ** exponent for one at most 0, 1e-14 of it off at most; 0 below SMALLEST_EXPONENT.

    Written out, because a call of the C library's would keep loops from being vectors.
    """
    bounded = exponent if exponent > SMALLEST_EXPONENT else SMALLEST_EXPONENT
    shifted = bounded * LOG2_E + ROUND_TO_INTEGER
    power = shifted - ROUND_TO_INTEGER
    rest = (bounded - power * LN2_HIGH) - power * LN2_LOW
    series = TAYLOR[11]
    series = series * rest + TAYLOR[10]
    series = series * rest + TAYLOR[9]
    series = series * rest + TAYLOR[8]
    series = series * rest + TAYLOR[7]
    series = series * rest + TAYLOR[6]
    series = series * rest + TAYLOR[5]
    series = series * rest + TAYLOR[4]
    series = series * rest + TAYLOR[3]
    series = series * rest + TAYLOR[2]
    series = series * rest + TAYLOR[1]
    series = series * rest + TAYLOR[0]
    scale = np.int64((np.float64(shifted).view(np.int64) << 52) + ONE_BITS).view(np.float64)
    return series * scale if exponent > SMALLEST_EXPONENT else 0.0


@contracted
def weigh(part: Float32s, top: float, coldness: float, weights: Floats) -> None:
    """Weights relative to a token of logit `top`.

    part      [n], n at most WINDOW
    top       not less than any of the part
    coldness  1 / temperature
    weights   [WINDOW], zeros after the n-th
    """
    for place in range(part.shape[0]):
        weights[place] = exponential((np.float64(part[place]) - top) * coldness)
    for place in range(part.shape[0], WINDOW):
        weights[place] = 0.0


@kernel
def sum_windows(
    row: Float32s, top: float, coldness: float, masses: Floats, weights: Floats
) -> float:
    """Sum of the weights of a row, which is returned, and of each of its windows.

    row      [V]
    masses   [ceil(V / WINDOW)]
    weights  [WINDOW] scratch
    """
    total = 0.0
    for window in range(masses.shape[0]):
        weigh(
            row[window * WINDOW : min((window + 1) * WINDOW, row.shape[0])], top, coldness, weights
        )
        half = WINDOW // 2
        while half > 0:
            upper = weights[half : 2 * half]
            for place in range(upper.shape[0]):
                weights[place] += upper[place]
            half //= 2
        masses[window] = weights[0]
        total += weights[0]
    return total


@kernel
def sum_buckets(
    row: Float32s, top: float, coldness: float, buckets: Floats, weights: Floats
) -> None:
    """Sum of a row's weights by size: the best one's is in bucket 0.

    row      [V]
    buckets  [NUM_BUCKETS], zeros before
    weights  [WINDOW] scratch
    """
    for start in range(0, row.shape[0], WINDOW):
        part = row[start : min(start + WINDOW, row.shape[0])]
        weigh(part, top, coldness, weights)
        for place in range(part.shape[0]):
            weight = weights[place]
            bucket = int((ONE_BITS - np.float64(weight).view(np.int64)) >> BUCKET_SHIFT)
            buckets[max(0, min(bucket, NUM_BUCKETS - 1))] += weight


@kernel
def draw_by_id(
    row: Float32s, top: float, coldness: float, chance: float, masses: Floats, weights: Floats
) -> int:
    """The token at `chance` (in [0, 1)) of the whole row, by inverse CDF in the order of ids.

    Never one of weight zero. The arrays are those of `sum_windows`.
    """
    wanted = chance * sum_windows(row, top, coldness, masses, weights)
    before = reached = 0.0
    chosen = 0
    for window in range(masses.shape[0]):
        if masses[window] > 0.0:
            chosen = window
            before = reached
            reached += masses[window]
            if reached > wanted:
                break
    reached = before
    weigh(row[chosen * WINDOW : min((chosen + 1) * WINDOW, row.shape[0])], top, coldness, weights)
    found = 0
    for place in range(WINDOW):
        if weights[place] > 0.0:
            found = place
            reached += weights[place]
            if reached > wanted:
                break
    return chosen * WINDOW + found
