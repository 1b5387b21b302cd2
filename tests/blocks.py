"""Blocks of GGUF types, those too for which the library has no way to them."""

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from headway.compute.formats.blocks import BLOCK_SHAPE

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
HALVES = {  # where the float16 numbers of a block lie
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(name: str, num_rows: int, num_values: int, seed: int = 0) -> Bytes:
    """[num_rows, bytes of a row]: any bits, but finite numbers, of K types scales as usual."""
    rng = np.random.default_rng(seed)
    values_of_block, bytes_of_block = BLOCK_SHAPE[name]
    count = num_rows * num_values // values_of_block
    if name not in HALVES:
        floats = rng.normal(size=(num_rows, num_values)).astype(np.float32)
        return floats.view(np.uint8) if name == "F32" else _sixteen(name, floats)
    blocks = rng.integers(0, 256, size=(count, bytes_of_block), dtype=np.uint8)
    for place in HALVES[name]:
        scales = (rng.normal(size=(count, 1)) / 100).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(num_rows, -1)


def _sixteen(name: str, floats: npt.NDArray[np.float32]) -> Bytes:
    if name == "F16":
        return floats.astype(np.float16).view(np.uint8)
    return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def quantized(name: str, values: Floats) -> Bytes:
    """Rows of float32 in the type: as the library does it, or by plain rounding for K types."""
    if not name.endswith("_K"):
        raw: Bytes = gguf.quants.quantize(values, GGMLQuantizationType[name])
        return raw.view(np.uint8)
    blocks = _q6_k(values) if name == "Q6_K" else _q4_k_or_q5_k(name, values)
    return blocks.reshape(len(values), -1)


def _q4_k_or_q5_k(name: str, values: Floats) -> Bytes:
    parts = values.reshape(-1, 8, 32)
    levels = 15 if name == "Q4_K" else 31
    least = np.maximum(-parts.min(axis=2), 0)
    scales = (parts.max(axis=2) + least) / levels
    units = [_rounded(each.max(axis=1, keepdims=True) / 63) for each in (scales, least)]
    whole = [
        np.rint(each / unit).astype(np.uint8)
        for each, unit in zip((scales, least), units, strict=True)
    ]
    step, low = (unit * count for unit, count in zip(units, whole, strict=True))
    places = (parts + low[..., None]) / np.maximum(step, 1e-30)[..., None]
    codes = np.clip(np.rint(places), 0, levels).astype(np.uint8)
    pieces = [unit.astype(np.float16).view(np.uint8) for unit in units]
    pieces.append(_packed_scales(*whole))
    if name == "Q5_K":
        bits = (codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]
        pieces.append(bits.sum(axis=1, dtype=np.uint8))
    nibbles = codes & 15
    pieces.append((nibbles[:, 0::2] | nibbles[:, 1::2] << 4).reshape(len(codes), -1))
    return np.concatenate(pieces, axis=1)


def _packed_scales(scales: Bytes, least: Bytes) -> Bytes:
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = least[:, :4] | least[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | least[:, 4:] << 4
    return np.concatenate((first, second, third), axis=1)


def _q6_k(values: Floats) -> Bytes:
    parts = values.reshape(-1, 16, 16)
    scales = np.abs(parts).max(axis=2) / 31
    unit = _rounded(scales.max(axis=1, keepdims=True) / 127)
    whole = np.rint(scales / unit).astype(np.int8)
    places = parts / np.maximum(whole * unit, 1e-30)[..., None]
    codes = (np.clip(np.rint(places), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes & 15
    nibbles = low[:, :, :2] | low[:, :, 2:] << 4
    pairs = (codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = pairs.sum(axis=2, dtype=np.uint8).reshape(len(parts), -1)
    pieces = (nibbles.reshape(len(parts), -1), high, whole.view(np.uint8))
    return np.concatenate((*pieces, unit.astype(np.float16).view(np.uint8)), axis=1)


def _rounded(values: Floats) -> Floats:
    """To what a float16 holds, never 0."""
    return np.maximum(values.astype(np.float16), np.float16(1e-7)).astype(np.float32)
