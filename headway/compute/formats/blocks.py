"""Block formats of GGUF, expanded to float32 with NumPy.

A quantized row is a run of blocks of 32 values. All numbers are little-endian.

name  bytes a block              value
q8_0  f16 d, 32 x i8             d * q
q4_0  f16 d, 16 bytes            d * (q - 8)    low nibbles: values 0-15, high: 16-31
q4_1  f16 d, f16 m, 16 bytes     d * q + m      nibbles as in q4_0

Source: ggml's ggml-common.h and ggml-quants.c, by their documented layout.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Bytes2d = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _blocks(rows: Bytes2d, block_bytes: int) -> Bytes2d:
    return np.ascontiguousarray(rows).reshape(-1, block_bytes)


def _half(blocks: Bytes2d, offset: int) -> Floats:
    """One f16 of each block as [num_blocks, 1] float32."""
    raw = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return raw.view("<f2").astype(np.float32)


def _nibbles(packed: Bytes2d) -> npt.NDArray[np.uint8]:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _q8_0(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 34)
    values = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _q4_0(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 18)
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= np.float32(8)
    values *= _half(blocks, 0)
    return values


def _q4_1(rows: Bytes2d) -> Floats:
    blocks = _blocks(rows, 20)
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


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
}


def expand(type_name: str, rows: Bytes2d) -> Floats:
    """Rows of raw bytes to float32; a new, writable array.

    rows     [R, bytes of a row]  uint8
    returns  [R, values of a row]
    """
    return EXPAND[type_name](rows).reshape(rows.shape[0], -1)
