"""K and V of all sequences as bfloat16 bits, in blocks of one pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.compute.cpu.jit import kernel
from headway.compute.cpu.vector import to_bfloat16
from headway.core.base.errors import NotEnoughMemory

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]

ALIGNMENT = 64  # bytes: one cache line, one 512-bit register


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Size of the pool; block counts are per layer, block_size is a multiple of 16."""

    num_layers: int
    num_blocks: int
    block_size: int  # tokens in one block
    num_kv_heads: int
    head_dim: int

    @property
    def key_sizes(self) -> tuple[int, ...]:
        """[layers, blocks, kv heads, head_dim / 2, block_size, 2]: 16 positions are a vector."""
        head = (self.num_kv_heads, self.head_dim // 2, self.block_size, 2)
        return (self.num_layers, self.num_blocks, *head)

    @property
    def value_sizes(self) -> tuple[int, ...]:
        """[layers, blocks, kv heads, block_size / 2, head_dim, 2]: positions go in pairs."""
        head = (self.num_kv_heads, self.block_size // 2, self.head_dim, 2)
        return (self.num_layers, self.num_blocks, *head)


class KvPool:
    """K and V side by side; a slot is one token's place: block * block_size + offset."""

    def __init__(self, shape: KvShape) -> None:
        """Raises NotEnoughMemory. The system gives a page only when it is first written."""
        self.shape = shape
        try:
            self.keys: Bits = aligned_zeros(shape.key_sizes, np.uint16)
            self.values: Bits = aligned_zeros(shape.value_sizes, np.uint16)
        except MemoryError as error:
            size = 2 * 2 * prod(shape.key_sizes)
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
        self.keys = self.values = np.zeros((0, 0, 0, 0, 0, 0), dtype=np.uint16)


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


def to_bits(values: npt.NDArray[Any]) -> Bits:
    """bfloat16 bits of float32 numbers: rounded to nearest even, NaN kept."""
    wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), (bits | 0x400000) >> 16, rounded).astype(np.uint16)


def from_bits(bits: Bits) -> Floats:
    """The float32 numbers that bfloat16 bits stand for; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@kernel
def store_bits(values: Floats, out: Bits) -> None:
    """`to_bits` of a flat array, as compiled kernels do it."""
    for i in range(values.size):
        out[i] = to_bfloat16(values[i])
