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
        """[layers, blocks, kv heads, head_dim, block_size]: 16 positions are one vector."""
        head = (self.num_kv_heads, self.head_dim, self.block_size)
        return (self.num_layers, self.num_blocks, *head)

    @property
    def value_sizes(self) -> tuple[int, ...]:
        """[layers, blocks, kv heads, block_size, head_dim]."""
        head = (self.num_kv_heads, self.block_size, self.head_dim)
        return (self.num_layers, self.num_blocks, *head)


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
            self.keys: Bits = _blocks_outermost(shape.key_sizes)
            self.values: Bits = _blocks_outermost(shape.value_sizes)
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
        self.keys = self.values = np.zeros((0, 0, 0, 0, 0), dtype=np.uint16)


def _blocks_outermost(sizes: tuple[int, ...]) -> Bits:
    """An array [layers, blocks, ...] whose memory is [blocks, layers, ...]."""
    layers, blocks, *rest = sizes
    return aligned_zeros((blocks, layers, *rest), np.uint16).swapaxes(0, 1)


def aligned_zeros(sizes: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeroed pages that are not touched yet, starting at a cache line."""
    item = np.dtype(dtype)
    size = prod(sizes) * item.itemsize
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size].view(item).reshape(tuple(sizes))


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
