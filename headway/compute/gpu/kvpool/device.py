"""K and V of all sequences, in blocks of one pool on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.core.base.errors import NotEnoughMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Size of the pool; block and slot counts are per layer."""

    num_layers: int
    num_blocks: int
    block_size: int  # tokens in one block
    num_kv_heads: int
    head_dim: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """[layers, blocks, tokens of a block, K and V, kv heads, head_dim]."""
        pairs = (2, self.num_kv_heads, self.head_dim)
        return (self.num_layers, self.num_blocks, self.block_size, *pairs)


class KvPool:
    """One tensor; K and V of a token lie side by side, so that one operation moves both.

    A slot is one token's place: block * block_size + offset in the block.
    """

    def __init__(self, shape: KvShape, dtype: torch.dtype, device: torch.device) -> None:
        """Raises NotEnoughMemory. On CPUs the pages are taken only when first written."""
        self.data = _zeros(shape.sizes, dtype, device)
        self._layers: tuple[Tensor, ...] = tuple(layer.flatten(0, 1) for layer in self.data)

    def layer(self, index: int) -> Tensor:
        """[slots, 2, kv heads, head_dim] of one layer; K is 0, V is 1."""
        return self._layers[index]

    def write(self, index: int, slots: Tensor, kv: Tensor) -> None:
        """Put kv [T, 2, kv heads, head_dim] into the layer's slots [T]."""
        layer = self._layers[index]
        layer.index_copy_(0, slots, kv.to(layer.dtype))

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in all layers; every source is read before any is written."""
        device = self.data.device
        source = torch.tensor(sources, dtype=torch.int64, device=device)
        target = torch.tensor(targets, dtype=torch.int64, device=device)
        self.data.index_copy_(1, target, self.data.index_select(1, source))

    def close(self) -> None:
        """Let go of the memory."""
        self.data = self.data.new_empty(0)
        self._layers = ()


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, because stray NaN in memory never written would spread through masks."""
    try:
        if device.type != "cpu":
            return torch.zeros(sizes, dtype=dtype, device=device)
        # NumPy asks the system for zeroed pages and does not touch them; torch would.
        raw = np.zeros((*sizes[:-1], sizes[-1] * dtype.itemsize), dtype=np.uint8)
        pool: Tensor = torch.from_numpy(raw).view(dtype)
        return pool
    except (MemoryError, torch.OutOfMemoryError) as error:
        size = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
        raise NotEnoughMemory(
            f"the KV pool of {size} bytes does not fit into memory; "
            "use a smaller --kv-cache-memory-bytes"
        ) from error
