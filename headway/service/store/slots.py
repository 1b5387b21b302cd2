"""Counters of open requests in a mapped file: a store of a number each, and no system call.

They survive the process that writes them, whatever kills it. (What a machine loses with its
power is what its kernel had not written back.)
"""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

FIRST_SLOTS = 1024
SLOT_BYTES = 16  # two native 64-bit numbers: each is stored at once, never half
MOST_TOKENS = 2**31  # of a request; no answer has as many, so what says more is damaged


class Progress(NamedTuple):
    """How many tokens of a request were handed to its connection."""

    sure: int  # surely: their bytes are the kernel's
    given: int  # at most: the last of them were being written


class Slots:
    """As many counters as requests are open; the file grows and never shrinks."""

    def __init__(self, path: Path) -> None:
        """Make the file; raises OSError when there is no room for it."""
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        self._free: list[int] = []
        self._num_slots = 0
        self._map = self._mapped(FIRST_SLOTS)
        self._numbers = memoryview(self._map).cast("Q")

    def take(self) -> int:
        """A slot whose counters are 0; raises OSError when there is no room for more."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._numbers[2 * slot] = self._numbers[2 * slot + 1] = 0
        return slot

    def free(self, slot: int) -> None:
        """Nothing refers to it any more."""
        self._free.append(slot)

    def give(self, slot: int, num_tokens: int) -> None:
        """So many are about to be handed over."""
        self._numbers[2 * slot + 1] = num_tokens

    def gave(self, slot: int, num_tokens: int) -> None:
        """So many are handed over."""
        self._numbers[2 * slot] = num_tokens

    def sync(self) -> None:
        """Have them on the disk, mapped pages too; blocks, and may be called from any thread."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Give up the map and the file, which stays."""
        self._numbers.release()
        self._map.close()
        os.close(self._file)

    def _grow(self) -> None:
        larger = self._mapped(2 * self._num_slots)
        self._numbers.release()
        self._map.close()
        self._map, self._numbers = larger, memoryview(larger).cast("Q")

    def _mapped(self, num_slots: int) -> mmap.mmap:
        # Really allocated: a store into a hole of a full disk would end the process.
        os.posix_fallocate(self._file, 0, num_slots * SLOT_BYTES)
        mapped = mmap.mmap(self._file, num_slots * SLOT_BYTES)
        self._free += range(num_slots - 1, self._num_slots - 1, -1)
        self._num_slots = num_slots
        return mapped


def read_progress(data: bytes, slot: int) -> Progress:
    """A slot of a file that nobody writes any more; zeros where it is damaged or cut off."""
    numbers = memoryview(data[: len(data) // SLOT_BYTES * SLOT_BYTES]).cast("Q")
    if 2 * slot + 1 >= len(numbers):
        return Progress(0, 0)
    sure, given = numbers[2 * slot], numbers[2 * slot + 1]
    if max(sure, given) >= MOST_TOKENS:
        return Progress(0, 0)
    return Progress(sure, max(sure, given))
