"""GGUF's K formats: superblocks of 256 values, whose parts have small whole scales of their own.

name  bytes a block                                           value
q4_k  f16 d, f16 m, 12 bytes, 128 bytes                       d * scale * q - m * least
q5_k  f16 d, f16 m, 12 bytes, 32 bytes of high bits, 128      as q4_k
q6_k  128 bytes, 64 bytes of high bits, 16 x i8 scale, f16 d  d * scale * (q - 32)

Of q4_k and q5_k eight parts of 32 values each have a 6-bit scale and a 6-bit least value. The
12 bytes: of parts 0-3 the low six bits of bytes 0-3 (scales) and 4-7 (least); of parts 4-7 the
nibbles of bytes 8-11 (low: scales), and the two high bits of bytes 0-3 and 4-7 above them.
Codes lie in runs of 32 bytes, low nibbles before high ones; a high-bit byte holds those of the
same place in every part. Of q6_k sixteen parts of 16 values have a scale; both halves of 128
values lie in runs of 64 bytes, and of 32 with two high bits for each quarter.

Source: ggml's ggml-common.h and ggml-quants.c, by their documented layout.
"""

import numpy as np
import numpy.typing as npt

Bytes2d = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SUPERBLOCK = 256
PARTS = 8
Q4_K_BYTES, Q5_K_BYTES, Q6_K_BYTES = 144, 176, 210


def q4_k_parts(blocks: Bytes2d) -> tuple[Bytes2d, Floats, Floats]:
    """Codes [N, 8, 32], and the scale and the least value [N, 8] that belong to each part.

    blocks  [N, 144]
    A value is scale * code - least.
    """
    return _q4_k_codes(blocks[:, 16:]), *_scales(blocks)


def q4_k(blocks: Bytes2d) -> Floats:
    """[N, 144] to [N, 8, 32] float32."""
    return _values(*q4_k_parts(blocks))


def q5_k(blocks: Bytes2d) -> Floats:
    """[N, 176] to [N, 8, 32] float32."""
    places = np.arange(PARTS, dtype=np.uint8)[:, None]
    codes = _q4_k_codes(blocks[:, 48:])
    codes |= ((blocks[:, None, 16:48] >> places) & 1) << 4
    return _values(codes, *_scales(blocks))


def q6_k(blocks: Bytes2d) -> Floats:
    """[N, 210] to [N, 16, 16] float32."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    codes = (low >> np.array([0, 4], np.uint8)[:, None]) & 15  # [N, 2, 2, 64]
    pairs = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> pairs) & 3  # [N, 2, 4, 32]
    codes = codes.reshape(high.shape) | high << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    values = codes.reshape(-1, 16, 16).astype(np.float32)
    values -= np.float32(32)
    values *= (half(blocks, 208) * scales)[:, :, None]
    return values


def _values(codes: Bytes2d, scales: Floats, least: Floats) -> Floats:
    values = codes.astype(np.float32)
    values *= scales[:, :, None]
    values -= least[:, :, None]
    return values


def _q4_k_codes(packed: Bytes2d) -> Bytes2d:
    """[N, 128] to [N, 8, 32]."""
    runs = packed.reshape(-1, 4, 1, 32)
    codes: Bytes2d = (runs >> np.array([0, 4], np.uint8)[:, None]) & np.uint8(15)
    return codes.reshape(-1, PARTS, 32)


def _scales(blocks: Bytes2d) -> tuple[Floats, Floats]:
    """Scales and least values [N, 8] out of the head of a q4_k or q5_k block."""
    first, second, third = (blocks[:, begin : begin + 4] for begin in (4, 8, 12))
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
    least = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    return half(blocks, 0) * scales.astype(np.float32), half(blocks, 2) * least.astype(np.float32)


def half(blocks: Bytes2d, offset: int) -> Floats:
    """One f16 of each block as [num_blocks, 1] float32."""
    raw = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return raw.view("<f2").astype(np.float32)
