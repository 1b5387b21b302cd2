"""Block formats of GGUF, expanded to float32 with NumPy.

A quantized row is a run of blocks: of 32 values those below, of 256 those of `k_blocks.py`.
All numbers are little-endian.

name  bytes a block              value
q8_0  f16 d, 32 x i8             d * q
q4_0  f16 d, 16 bytes            d * (q - 8)    low nibbles: values 0-15, high: 16-31
q4_1  f16 d, f16 m, 16 bytes     d * q + m      nibbles as in q4_0
q5_0  f16 d, u32, 16 bytes       d * (q - 16)   nibbles as in q4_0, bit i of the u32 is the
q5_1  f16 d, f16 m, u32, 16      d * q + m      fifth bit of value i

Source: ggml's ggml-common.h and ggml-quants.c, by their documented layout.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from headway.compute.formats.k_blocks import (
    Q4_K_BYTES,
    Q5_K_BYTES,
    Q6_K_BYTES,
    SUPERBLOCK,
    half,
    q4_k,
    q5_k,
    q6_k,
)

Bytes2d = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

PIECE_VALUES = 1 << 18  # expanded at once, in rows: bounds temporary arrays


def _blocks(rows: Bytes2d, block_bytes: int) -> Bytes2d:
    return np.ascontiguousarray(rows).reshape(-1, block_bytes)


def _nibbles(packed: Bytes2d) -> npt.NDArray[np.uint8]:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _q8_0(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 34)
    values = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    values *= half(blocks, 0)
    return values


def _q4_0(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 18)
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= np.float32(8)
    values *= half(blocks, 0)
    return values


def _q4_1(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 20)
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= half(blocks, 0)
    values += half(blocks, 2)
    return values


def q5_0_codes(blocks: Bytes2d) -> Bytes2d:
    """[N, 22] to [N, 32]: what a value is a multiple of the scale by, and 16."""
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])


def _q5_0(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 22)
    values = q5_0_codes(blocks).astype(np.float32)
    values -= np.float32(16)
    values *= half(blocks, 0)
    return values


def _q5_1(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 24)
    values = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.float32)
    values *= half(blocks, 0)
    values += half(blocks, 2)
    return values


def _fifth_bits(packed: Bytes2d) -> Bytes2d:
    """[N, 4] to [N, 32], each 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q4_k(rows: Bytes2d) -> Floats:
    return q4_k(_blocks(rows, Q4_K_BYTES))


def _q5_k(rows: Bytes2d) -> Floats:
    return q5_k(_blocks(rows, Q5_K_BYTES))


def _q6_k(rows: Bytes2d) -> Floats:
    return q6_k(_blocks(rows, Q6_K_BYTES))


def _bf16(rows: Bytes2d) -> Floats:
    high = np.ascontiguousarray(rows).view("<u2").astype(np.uint32)
    return (high << np.uint32(16)).view(np.float32)


def _f16(rows: Bytes2d) -> Floats:
    return np.ascontiguousarray(rows).view("<f2").astype(np.float32)


def _f32(rows: Bytes2d) -> Floats:
    return np.ascontiguousarray(rows).view("<f4").astype(np.float32)


EXPAND: Mapping[str, Callable[[Bytes2d], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
# Values of a block, and its bytes.
BLOCK_SHAPE: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (SUPERBLOCK, Q4_K_BYTES),
    "Q5_K": (SUPERBLOCK, Q5_K_BYTES),
    "Q6_K": (SUPERBLOCK, Q6_K_BYTES),
}


def expand(type_name: str, rows: Bytes2d) -> Floats:
    """Rows of raw bytes to float32; a new, writable array. Some rows at a time.

    rows     [R, bytes of a row]  uint8
    returns  [R, values of a row]
    """
    num_values, num_bytes = BLOCK_SHAPE[type_name]
    out = np.empty((len(rows), rows.shape[1] // num_bytes * num_values), np.float32)
    step = max(1, PIECE_VALUES // max(1, out.shape[1]))
    for first in range(0, len(rows), step):
        piece = out[first : first + step]
        piece[:] = EXPAND[type_name](rows[first : first + step]).reshape(piece.shape)
    return out
