"""Rows of one GGUF type as rows of another that the kernels read.

from          to     what becomes of the numbers
Q4_0, Q5_0    Q8_0   nothing: the codes fit into 8 bits, under the same scale
Q4_K          Q4_1   codes stay; the product of both scales, and of both least values, becomes a
                     float16: off by 2**-12 of itself at most
any           F32    nothing
any other            expanded, and each value to its nearest code (quantize_weights.py)
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.quantize_weights import quantize_weights
from headway.compute.formats.blocks import BLOCK_SHAPE, expand, q5_0_codes
from headway.compute.formats.k_blocks import q4_k_parts

Bytes = npt.NDArray[np.uint8]


def repack(rows: Bytes, type_name: str, packed_name: str) -> Bytes:
    """[R, bytes of a row] of the one type as [R, bytes of a row] of the other.

    Raises ValueError for numbers that float16 scales cannot hold.
    """
    if packed_name == type_name:
        return rows
    convert = EXACT.get((type_name, packed_name))
    if convert is not None:
        blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK_SHAPE[type_name][1])
        return convert(blocks).reshape(len(rows), -1)
    values = expand(type_name, rows)
    return values.view(np.uint8) if packed_name == "F32" else quantize_weights(values, packed_name)


def row_bytes(num_values: int, type_name: str) -> int:
    """Bytes of a row of so many values."""
    values_of_block, bytes_of_block = BLOCK_SHAPE[type_name]
    return num_values // values_of_block * bytes_of_block


def _q4_0_as_q8_0(blocks: Bytes) -> Bytes:
    codes = np.concatenate((blocks[:, 2:] & 15, blocks[:, 2:] >> 4), axis=1)
    return np.concatenate((blocks[:, :2], codes - np.uint8(8)), axis=1)


def _q5_0_as_q8_0(blocks: Bytes) -> Bytes:
    return np.concatenate((blocks[:, :2], q5_0_codes(blocks) - np.uint8(16)), axis=1)


def _q4_k_as_q4_1(blocks: Bytes) -> Bytes:
    codes, scales, least = q4_k_parts(blocks)
    out = np.empty((*scales.shape, 20), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # `pack` refuses what is not finite
        heads = np.stack((scales, -least), axis=2).astype(np.float16)
    out[..., :4] = heads.view(np.uint8)
    out[..., 4:] = codes[..., :16] | codes[..., 16:] << 4
    return out


EXACT: Mapping[tuple[str, str], Callable[[Bytes], Bytes]] = {
    ("Q4_0", "Q8_0"): _q4_0_as_q8_0,
    ("Q5_0", "Q8_0"): _q5_0_as_q8_0,
    ("Q4_K", "Q4_1"): _q4_k_as_q4_1,
}
