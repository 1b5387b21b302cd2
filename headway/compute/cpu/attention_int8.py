"""K and V of 8 bits: storing them, and expanding a chunk to the bfloat16 pairs of attention.

Each position of each KV head has a float32 scale for K and one for V: max |x| / 127. They
lie behind the numbers, in the same block: 4 bytes a position behind a block's K, and behind
each line of a pair of positions in V. What attention reads is number * scale, rounded to
bfloat16; from there on everything is as with a pool of bfloat16.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from headway.compute.cpu.attention_pairs import emit_round
from headway.compute.cpu.attention_tiles import prefetch
from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import (
    ADDRESS,
    FLOAT,
    FLOATS,
    INTS,
    LANES,
    VECTOR,
    emit_load,
    emit_store,
    operation,
    read,
    read_address,
    write,
    write_address,
    write_byte,
)

BYTES = ir.VectorType(ir.IntType(8), 2 * LANES)
HIGHEST = np.float32(127.0)
LEAST = np.float32(1e-30)  # a head whose largest value is below it counts as zeros


@kernel
def store_head(
    source: int, head_dim: int, target: int, pair_step: int, lane_step: int, scale_place: int
) -> None:
    """One head of one position to 8 bits: numbers 2 i + j to target + i pair_step + j lane_step.

    Halves go to even. A number that is not finite makes the scale, and so the head, NaN.
    """
    highest, poison = np.float32(0.0), np.float32(0.0)
    for d in range(head_dim):
        number = read(source + 4 * d)
        highest = max(highest, abs(number))
        poison += number * np.float32(0.0)
    is_zero = highest < LEAST
    up = np.float32(0.0) if is_zero or poison != 0.0 else HIGHEST / highest
    write(scale_place, np.float32(0.0) if is_zero else highest / HIGHEST + poison)
    for d in range(head_dim):
        # Anything times zero but for what is not finite, which must not become an integer.
        scaled = np.rint(read(source + 4 * d) * up) if up > 0.0 else np.float32(0.0)
        write_byte(target + d // 2 * pair_step + d % 2 * lane_step, np.intp(scaled))


@kernel
def expand_keys(
    start: int,
    groups: int,
    key_groups: int,
    head_dim: int,
    block_size: int,
    value_groups: int,
    out: int,
) -> None:
    """K of a chunk's first groups as pairs [head_dim / 2, 16] of bfloat16, group after group.

    key_groups    their addresses; on return those of the pairs
    value_groups  addresses of the same groups' V, which is fetched meanwhile
    """
    for group in range(groups):
        source, soon = read_address(key_groups + 8 * group), read_address(value_groups + 8 * group)
        offset = (start + 16 * group) % block_size
        scales = source + head_dim * block_size + 2 * offset
        low, high = doubled(scales), doubled(scales + 32)
        target = out + 32 * head_dim * group
        for pair in range(head_dim // 2):
            # A group of V is 16 lines of head_dim numbers and a scale.
            prefetch(soon + 34 * pair)
            expand(source + 2 * block_size * pair, low, high, target + 64 * pair)
        write_address(key_groups + 8 * group, target)


@kernel
def expand_values(
    groups: int, value_groups: int, head_dim: int, fetch: int, fetch_step: int, out: int
) -> None:
    """V of a chunk's first groups as pairs [8, head_dim] of bfloat16, group after group.

    fetch  addresses of as many groups of K that come next, lines fetch_step bytes apart
    """
    line = 2 * head_dim + 8
    for group in range(groups):
        source, ahead = read_address(value_groups + 8 * group), read_address(fetch + 8 * group)
        target = out + 32 * head_dim * group
        for _ in range(8):
            scales = alternating(source + 2 * head_dim)
            for d in range(0, head_dim, 16):
                prefetch(ahead)
                ahead += fetch_step
                expand(source + 2 * d, scales, scales, target + 4 * d)
            source += line
            target += 4 * head_dim
        write_address(value_groups + 8 * group, target - 32 * head_dim)


@operation(VECTOR, ADDRESS)
def doubled(builder: Any, address: Any) -> Any:
    """Eight float32 from memory, each twice."""
    half = emit_load(builder, address, ir.VectorType(FLOAT, LANES // 2), 1)
    order = ir.Constant(INTS, [lane // 2 for lane in range(LANES)])
    return builder.shuffle_vector(half, half, order)


@operation(VECTOR, ADDRESS)
def alternating(builder: Any, address: Any) -> Any:
    """Two float32 from memory, in turn."""
    both = emit_load(builder, address, ir.VectorType(FLOAT, 2), 1)
    return builder.shuffle_vector(both, both, ir.Constant(INTS, [0, 1] * (LANES // 2)))


@operation(types.void, ADDRESS, VECTOR, VECTOR, ADDRESS)
def expand(builder: Any, source: Any, low: Any, high: Any, target: Any) -> None:
    """32 numbers of 8 bits, times the first and second sixteen scales, to bfloat16."""
    numbers = emit_load(builder, source, BYTES, 1)
    parts = []
    for first, scales in ((0, low), (LANES, high)):
        order = ir.Constant(INTS, list(range(first, first + LANES)))
        part = builder.shuffle_vector(numbers, numbers, order)
        wide = builder.sitofp(builder.sext(part, INTS), FLOATS)
        parts.append(builder.fmul(wide, scales))
    emit_store(builder, target, emit_round(builder, *parts), 4)
