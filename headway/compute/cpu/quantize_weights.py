"""Float weights to 8 or 4 bits, in GGUF's blocks of 32.

Q8_0  scale = max |x| / 127, as a float16; each value to its nearest code.
Q4_1  the scale and the least value that give the smallest squared error among CANDIDATES.
      Each candidate cuts the range of the block into so many steps, and lays the codes to its
      low end, its middle or its high end: more than 15 steps leave the extremes of the other
      end to the outermost code and serve the rest better. For the codes of a candidate, the
      best scale and offset follow by least squares. The winner's are rounded to float16, and
      each value gets its nearest code.

Only plain operations on single numbers, in a fixed order: every machine finds the same bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    add,
    address_of,
    divide,
    fma,
    load,
    maximum,
    multiply,
    splat,
    store,
    subtract,
    where_negative,
)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

GROUP = 32
BLOCKS = 16  # that are fitted side by side, one in each lane
ROW = 4 * BLOCKS  # bytes
STEPS = np.float32(15.0)  # from the lowest to the highest of 16 codes
# Steps into which a block's range is cut, and which share of what that leaves of 15 lies below.
# Half as many have 10 % more squared error, twice as many half a percent less.
CANDIDATES = np.array(
    [(steps, share) for steps in np.arange(12.6, 16.7, 0.4) for share in (0.0, 0.5, 1.0)],
    np.float32,
)
ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves a rounded integer
LARGEST = 30000.0  # a range of twice that is a finite float16
TINY = np.float32(1e-30)


def quantize_weights(values: Floats, type_name: str) -> Bytes:
    """Rows of float32 as rows of GGUF blocks, "Q8_0" or "Q4_1".

    values   [R, K], K a multiple of 32
    returns  [R, bytes of a row] uint8

    Raises ValueError for a value that float16 scales cannot hold, NaN included.
    """
    largest = max(values.max(), -values.min())
    if not largest <= LARGEST:
        raise ValueError(
            f"a weight of {largest} is too large for a float16 scale; the file is damaged, or "
            "use --quantization none"
        )
    rows, inputs = values.shape
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, GROUP)
    blocks = _q8_0(groups) if type_name == "Q8_0" else _q4_1(groups)
    return blocks.reshape(rows, inputs // GROUP * blocks.shape[1])


def _q8_0(groups: Floats) -> Bytes:
    blocks = np.empty((len(groups), 2 + GROUP), np.uint8)
    scales = (np.abs(groups).max(axis=1) / np.float32(127)).astype(np.float16)
    blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    steps = scales.astype(np.float32)
    steps[steps == 0] = np.inf  # all codes are 0
    codes = np.rint(groups / steps[:, None])
    # A scale that was rounded down leaves the largest value a little above 127 steps.
    blocks[:, 2:] = np.clip(codes, -127, 127).astype(np.int8).view(np.uint8)
    return blocks


def _q4_1(groups: Floats) -> Bytes:
    blocks = np.empty((len(groups), 4 + GROUP // 2), np.uint8)
    fitted = np.empty((len(groups), 2), np.float32)
    fit_four_bits(groups, CANDIDATES, fitted)
    halves = fitted.astype(np.float16)
    blocks[:, :4] = halves.view(np.uint8).reshape(-1, 4)
    code_four_bits(groups, halves.astype(np.float32), blocks)
    return blocks


@kernel
def fit_four_bits(groups: Any, candidates: Any, fitted: Any) -> None:
    """The scale and the least value of each block.

    groups      [G, 32] float32
    candidates  [N, 2] float32: what to try
    fitted      [G, 2] float32, written: scale and offset
    """
    columns = np.empty((GROUP, BLOCKS), np.float32)
    found = np.empty((2, BLOCKS), np.float32)
    for first in range(0, len(groups), BLOCKS):
        count = min(BLOCKS, len(groups) - first)
        for lane in range(BLOCKS):
            for i in range(GROUP):
                columns[i, lane] = groups[first + min(lane, count - 1), i]
        _fit(address_of(columns), candidates, address_of(found))
        for lane in range(count):
            fitted[first + lane, 0] = found[0, lane]
            fitted[first + lane, 1] = found[1, lane]


@kernel
def _fit(x: int, candidates: Any, found: int) -> None:
    """Sixteen blocks, one in each lane.

    x      address of float32 [32, 16], which is overwritten
    found  address of float32 [2, 16], written: scales and offsets
    """
    zero, top, round_ = splat(np.float32(0)), splat(STEPS), splat(ROUND)
    count, share = splat(np.float32(GROUP)), splat(np.float32(1 / GROUP))
    low, high, mean = load(x), load(x), zero
    for i in range(GROUP):
        value = load(x + ROW * i)
        low, high = smaller(value, low), maximum(value, high)
        mean = add(mean, value)
    mean = multiply(mean, share)
    # Around the mean, so that the sums below do not cancel.
    low, span = subtract(low, mean), maximum(subtract(high, low), splat(TINY))
    total = zero
    for i in range(GROUP):
        value = subtract(load(x + ROW * i), mean)
        store(x + ROW * i, value)
        total = fma(value, value, total)
    error, scale, offset = total, zero, zero
    for candidate in range(len(candidates)):
        steps, below = candidates[candidate, 0], candidates[candidate, 1]
        shift = splat((STEPS - steps) * below)
        inverse = divide(splat(steps), span)
        codes, squares, products = zero, zero, zero
        for i in range(GROUP):
            value = load(x + ROW * i)
            place = fma(subtract(value, low), inverse, shift)
            code = subtract(add(place, round_), round_)
            code = smaller(maximum(code, zero), top)
            codes = add(codes, code)
            squares = fma(code, code, squares)
            products = fma(code, value, products)
        # Exact: whole numbers below 2**24. The values sum to 0.
        spread = subtract(multiply(count, squares), multiply(codes, codes))
        found_scale = divide(multiply(count, products), maximum(spread, splat(np.float32(1))))
        rest = subtract(total, multiply(found_scale, products))
        gain = subtract(rest, error)
        error = where_negative(gain, rest, error)
        scale = where_negative(gain, found_scale, scale)
        least = multiply(subtract(zero, multiply(found_scale, codes)), share)
        offset = where_negative(gain, least, offset)
    store(found, scale)
    store(found + ROW, add(offset, mean))


@kernel
def smaller(a: Any, b: Any) -> Any:
    """The smaller of each lane."""
    return where_negative(subtract(a, b), a, b)


@kernel
def code_four_bits(groups: Any, fitted: Any, blocks: Any) -> None:
    """The nearest codes of each block, into the nibbles of `blocks` [G, 20] from byte 4 on.

    fitted  [G, 2] float32: scale and offset as they are stored
    """
    half = GROUP // 2
    codes = np.empty(GROUP, np.uint8)
    for group in range(len(groups)):
        scale, offset = fitted[group, 0], fitted[group, 1]
        inverse = np.float32(1) / scale if scale > TINY else np.float32(0)
        for i in range(GROUP):
            place = (groups[group, i] - offset) * inverse
            place = place if place > np.float32(0) else np.float32(0)
            place = place if place < STEPS else STEPS
            codes[i] = np.uint8(place + np.float32(0.5))
        for i in range(half):
            blocks[group, 4 + i] = codes[i] | (codes[half + i] << np.uint8(4))
