"""Copies of KV blocks in host memory, pinned on CUDA, moved beside the device's own work.

Not yet run on a GPU: its tests are on CPU tensors, where there are no streams.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from headway.core.messages.step import BlockMove

SEGMENT_BYTES = 256 << 20

log = logging.getLogger(__name__)


class HostTier:
    """Blocks of a pool [layers, blocks, ...], kept block after block; one thread at a time.

    On CUDA the copies run on a stream of their own. It waits for what was queued before, and
    what is queued after waits for it, so a block is never read half copied; only the host goes
    on at once.
    """

    def __init__(self, pool: Tensor, num_blocks: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._pool = pool
        self._limit = num_blocks
        self._sizes = (pool.shape[0], *pool.shape[2:])
        block_bytes = pool[:, 0].numel() * pool.element_size() if num_blocks else 1
        self._a_segment = max(1, segment_bytes // block_bytes)
        self._segments: list[Tensor] = []
        self._may_grow = num_blocks > 0
        self._stream = torch.cuda.Stream(pool.device) if pool.is_cuda and num_blocks else None
        self.num_ready = 0  # blocks that there is memory for
        self._grow()

    def move(self, saves: Sequence[BlockMove], loads: Sequence[BlockMove]) -> float:
        """Queue all saves, then all loads; returns the seconds that the host spent on it.

        Without a stream everything is done on return.
        """
        if not saves and not loads:
            return 0.0
        began = time.perf_counter()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._pool.device))
        with self._beside():
            for save in saves:
                self._block(save.host).copy_(self._pool[:, save.device], non_blocking=True)
            for load in loads:
                self._pool[:, load.device].copy_(self._block(load.host), non_blocking=True)
        if self._stream is not None:
            torch.cuda.current_stream(self._pool.device).wait_stream(self._stream)
        took = time.perf_counter() - began
        # Ahead of need: the next plan may use only what is ready now.
        if saves and max(save.host for save in saves) >= self.num_ready - self._a_segment // 2 - 1:
            self._grow()
        return took

    def close(self) -> None:
        """Let go of the memory once nothing is being copied; calling it twice is harmless."""
        if self._stream is not None:
            self._stream.synchronize()
        self._segments, self._may_grow = [], False
        self._pool = self._pool.new_empty(0)

    def _beside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _grow(self) -> None:
        """Take one more segment; when that fails, what is there has to do from now on."""
        size = min(self._a_segment, self._limit - self.num_ready)
        if not self._may_grow or size < 1:
            return
        try:
            segment = torch.empty(
                (size, *self._sizes), dtype=self._pool.dtype, pin_memory=self._pool.is_cuda
            )
        except RuntimeError as error:  # torch has no better name for it
            self._may_grow = False
            log.warning(
                "kv_host_memory_not_grown",
                extra={
                    "reason": str(error),
                    "blocks": self.num_ready,
                    "most_blocks": self._limit,
                },
            )
        else:
            self._segments.append(segment)
            self.num_ready += size

    def _block(self, host: int) -> Tensor:
        segment, index = divmod(host, self._a_segment)
        return self._segments[segment][index]
