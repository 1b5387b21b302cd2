"""K and V of all sequences, as bfloat16 bits or in 8 bits, in blocks of one pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.pairs import Bits, Floats, from_bits, to_bits
from headway.compute.cpu.settings import KvDtype
from headway.compute.cpu.vector import to_bfloat16
from headway.core.base.errors import NotEnoughMemory

Stored = npt.NDArray[Any]  # uint16, bits of bfloat16, or int8

SCALE_BYTES = 4  # of a head of 8-bit numbers
ALIGNMENT = 64  # bytes: one cache line, one 512-bit register


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Size of the pool; block counts are per layer, block_size is a multiple of 16.

    Numbers of 8 bits have a float32 scale for each position of each head, as 4 more of them:
    behind the K of a block, [block_size] scales in two more pairs of dimensions, and behind
    the V of each pair of positions, two scales in four more columns.
    """

    num_layers: int
    num_blocks: int
    block_size: int  # tokens in one block
    num_kv_heads: int
    head_dim: int
    dtype: KvDtype = KvDtype.BFLOAT16

    @property
    def key_sizes(self) -> tuple[int, ...]:
        """[layers, blocks, kv heads, head_dim / 2, block_size, 2]: 16 positions are a vector."""
        head = (self.num_kv_heads, (self.head_dim + self._extra) // 2, self.block_size, 2)
        return (self.num_layers, self.num_blocks, *head)

    @property
    def value_sizes(self) -> tuple[int, ...]:
        """[layers, blocks, kv heads, block_size / 2, head_dim, 2]: positions go in pairs."""
        head = (self.num_kv_heads, self.block_size // 2, self.head_dim + self._extra, 2)
        return (self.num_layers, self.num_blocks, *head)

    @property
    def item(self) -> npt.DTypeLike:
        """NumPy's type of what is stored."""
        return np.int8 if self.dtype == KvDtype.INT8 else np.uint16

    @property
    def _extra(self) -> int:
        return SCALE_BYTES if self.dtype == KvDtype.INT8 else 0


def bytes_per_value(dtype: KvDtype, head_dim: int) -> float:
    """Of one number with its part of a scale."""
    return 1 + SCALE_BYTES / head_dim if dtype == KvDtype.INT8 else 2


class KvPool:
    """K and V side by side; a slot is one token's place: block * block_size + offset.

    In memory a block's bytes of all layers lie together, so that a short context touches few
    of the system's large pages; were the layers outermost, the first block would touch one of
    2 MB in each of them.
    """

    def __init__(self, shape: KvShape) -> None:
        """Raises NotEnoughMemory. The system gives a page only when it is first written."""
        self.shape = shape
        try:
            self.keys: Stored = _blocks_outermost(shape.key_sizes, shape.item)
            self.values: Stored = _blocks_outermost(shape.value_sizes, shape.item)
        except MemoryError as error:
            size = 2 * np.dtype(shape.item).itemsize * prod(shape.key_sizes)
            raise NotEnoughMemory(
                f"the KV pool of {size} bytes does not fit into memory; "
                "use a smaller --kv-cache-memory-bytes"
            ) from error

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in all layers; every source is read before any is written."""
        source, target = list(sources), list(targets)
        for data in (self.keys, self.values):
            data[:, target] = data[:, source]

    def close(self) -> None:
        """Let go of the memory; calling it twice is harmless."""
        self.keys = self.values = np.zeros((0, 0, 0, 0, 0, 0), dtype=self.shape.item)


def _blocks_outermost(sizes: tuple[int, ...], item: npt.DTypeLike) -> Stored:
    """An array [layers, blocks, ...] whose memory is [blocks, layers, ...]."""
    layers, blocks, *rest = sizes
    return aligned_zeros((blocks, layers, *rest), item).swapaxes(0, 1)


def aligned_zeros(sizes: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeroed pages that are not touched yet, starting at a cache line."""
    item = np.dtype(dtype)
    size = prod(sizes) * item.itemsize
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size].view(item).reshape(tuple(sizes))


def keys_by_position(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """K of some blocks, [..., head_dim / 2, block_size, 2] as [..., block_size, head_dim]."""
    pairs, block_size = keys.shape[-3:-1]
    return keys.swapaxes(-3, -2).reshape(*keys.shape[:-3], block_size, 2 * pairs)


def values_by_position(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """V of some blocks, [..., block_size / 2, head_dim, 2] as [..., block_size, head_dim]."""
    pairs, head_dim = values.shape[-3:-1]
    return values.swapaxes(-2, -1).reshape(*values.shape[:-3], 2 * pairs, head_dim)


def head_dim_of(values: Stored) -> int:
    """The number of columns of V that are not scales."""
    return int(values.shape[-2]) - (SCALE_BYTES if values.dtype == np.int8 else 0)


def key_numbers(keys: Stored) -> Floats:
    """K of some blocks as attention reads it, [..., block_size, head_dim]."""
    if keys.dtype != np.int8:
        return from_bits(keys_by_position(keys))
    numbers, scales = np.split(keys, [keys.shape[-3] - SCALE_BYTES // 2], axis=-3)
    flat = np.ascontiguousarray(scales).reshape(*keys.shape[:-3], -1).view(np.float32)
    return from_bits(to_bits(keys_by_position(numbers) * flat[..., None]))


def value_numbers(values: Stored) -> Floats:
    """V of some blocks as attention reads it, [..., block_size, head_dim]."""
    if values.dtype != np.int8:
        return from_bits(values_by_position(values))
    numbers, scales = np.split(values, [head_dim_of(values)], axis=-2)
    flat = np.ascontiguousarray(scales).reshape(*values.shape[:-3], -1).view(np.float32)
    return from_bits(to_bits(values_by_position(numbers) * flat[..., None]))


@kernel
def store_bits(values: Floats, out: Bits) -> None:
    """`to_bits` of a flat array, as compiled kernels do it."""
    for i in range(values.size):
        out[i] = to_bfloat16(values[i])
