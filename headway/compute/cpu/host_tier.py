"""Copies of KV blocks in host memory: where blocks go that leave the pool.

On CPUs both tiers are the same machine's memory. The pool has a fixed size and is what
sequences compute in; this tier takes its memory in segments, as it is needed.
"""

import logging
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.core.base.errors import CorruptBlock
from headway.core.messages.step import BlockMove

SEGMENT_BYTES = 64 << 20
# What the machine must have left, beside the segment itself, for one to be taken.
SPARE_BYTES = 256 << 20

Blocks = npt.NDArray[Any]  # [layers, blocks, ...]; in a segment [blocks, layers, ...]

log = logging.getLogger(__name__)


def unknown() -> int | None:
    """Free memory, where nobody says how much there is."""
    return None


class HostMemory(NamedTuple):
    """How the tier gets its memory, and whether it distrusts it."""

    free_bytes: Callable[[], int | None] = unknown
    is_checked: bool = False  # keep a checksum of every block, and compare it when it is loaded
    segment_bytes: int = SEGMENT_BYTES


class HostTier:
    """Blocks of some arrays of a pool, kept block after block; one thread at a time."""

    def __init__(self, arrays: Sequence[Blocks], num_blocks: int, memory: HostMemory) -> None:
        """At most `num_blocks`, of all arrays together; axis 1 of each array is the block."""
        self._arrays = tuple(arrays)
        self._limit = num_blocks
        self._memory = memory
        self._block_bytes = sum(array.nbytes // array.shape[1] for array in arrays)
        self._a_segment = max(1, memory.segment_bytes // max(1, self._block_bytes))
        self._segments: list[tuple[Blocks, ...]] = []
        self._checksums: dict[int, int] = {}
        self._may_grow = num_blocks > 0
        self.num_ready = 0  # blocks that there is memory for
        self._grow()

    def move(self, saves: Sequence[BlockMove], loads: Sequence[BlockMove]) -> float:
        """All saves, then all loads; returns the seconds that took.

        Raises CorruptBlock when it is checked and a block is not what was saved.
        """
        if not saves and not loads:
            return 0.0
        began = time.perf_counter()
        for save in saves:
            for kept, array in zip(self._block(save.host), self._arrays, strict=True):
                kept[...] = array[:, save.device]
            if self._memory.is_checked:
                self._checksums[save.host] = self._checksum(save.host)
        for load in loads:
            if self._memory.is_checked:
                self._check(load.host)
            for kept, array in zip(self._block(load.host), self._arrays, strict=True):
                array[:, load.device] = kept
        took = time.perf_counter() - began
        # Ahead of need: the next plan may use only what is ready now.
        if saves and max(save.host for save in saves) >= self.num_ready - self._a_segment // 2 - 1:
            self._grow()
        return took

    def close(self) -> None:
        """Let go of the memory; calling it twice is harmless."""
        self._arrays, self._segments, self._may_grow = (), [], False

    def _grow(self) -> None:
        """Take one more segment; when that fails, what is there has to do from now on."""
        size = min(self._a_segment, self._limit - self.num_ready)
        if not self._may_grow or size < 1:
            return
        free, wanted = self._memory.free_bytes(), size * self._block_bytes
        try:
            if free is not None and free < wanted + SPARE_BYTES:
                raise MemoryError(f"{free} bytes are free")
            self._segments.append(
                tuple(
                    np.zeros((size, a.shape[0], *a.shape[2:]), dtype=a.dtype) for a in self._arrays
                )
            )
        except MemoryError as error:
            self._may_grow = False
            log.warning(
                "kv_host_memory_not_grown",
                extra={
                    "reason": str(error),
                    "wanted_bytes": wanted,
                    "blocks": self.num_ready,
                    "most_blocks": self._limit,
                },
            )
        else:
            self.num_ready += size

    def _block(self, host: int) -> tuple[Blocks, ...]:
        segment, index = divmod(host, self._a_segment)
        return tuple(part[index] for part in self._segments[segment])

    def _checksum(self, host: int) -> int:
        value = 0
        for part in self._block(host):
            value = zlib.crc32(part.view(np.uint8).reshape(-1).data, value)
        return value

    def _check(self, host: int) -> None:
        if self._checksum(host) != self._checksums.get(host):
            raise CorruptBlock(
                f"block {host} of the host tier is not what was saved there; "
                "the machine's memory may be faulty"
            )
