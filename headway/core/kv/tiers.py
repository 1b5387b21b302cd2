"""The host tier's ledger: which of its blocks are free, and what has to be moved.

A move is decided now and done by the next plan that comes out: all saves (device to host)
first, then all loads (host to device), then copies, then what is computed. So within one
plan a block may be saved and its device block given to somebody else, but a host block that
is loaded from must not be saved into.
"""

import heapq
from typing import NamedTuple

from headway.core.base.units import Blocks, Seconds
from headway.core.messages.step import BlockMove


class TierSettings(NamedTuple):
    """What is kept beyond the device's blocks, and for how long."""

    num_host_blocks: int = 0  # most blocks in host memory; 0: there is no host tier
    ttl: Seconds = Seconds(0.0)  # without use, after which a cached block is dropped; 0: never


class Moves(NamedTuple):
    """What the next plan has to move; see messages/step.py."""

    saves: tuple[BlockMove, ...]
    loads: tuple[BlockMove, ...]


class HostLedger:
    """Blocks of the host tier by number, and the moves that are still to be planned."""

    def __init__(self, num_blocks: int) -> None:
        self.limit = num_blocks
        self.num_saved = 0  # blocks, since start; counted when they go into a plan
        self.num_loaded = 0
        self._num_ready = 0  # the executor has memory for that many
        # Lowest first, so that memory is asked for only when what is there is full.
        self._free: list[int] = []
        self._saves: dict[int, int] = {}  # host block -> device block
        self._loads: dict[int, int] = {}  # device block -> host block
        self._sources: set[int] = set()  # host blocks that the next plan loads from
        self._leaving: set[int] = set()  # given back, but the next plan still loads from them
        self._read: set[int] = set()  # device blocks that copies of the next plan read

    @property
    def num_free(self) -> Blocks:
        """Blocks that could be saved into now."""
        return Blocks(len(self._free))

    @property
    def num_ready(self) -> Blocks:
        """Blocks that the executor has memory for."""
        return Blocks(self._num_ready)

    @property
    def num_loading(self) -> int:
        """Host blocks that the next plan loads from."""
        return len(self._sources)

    def set_ready(self, num_blocks: int) -> None:
        """The executor has memory for so many; it never gets less."""
        ready = min(num_blocks, self.limit)
        for block in range(self._num_ready, ready):
            heapq.heappush(self._free, block)
        self._num_ready = max(self._num_ready, ready)

    def save(self, device: int) -> int:
        """Plan a copy of the device block to a free host block, which is returned."""
        host = heapq.heappop(self._free)
        self._saves[host] = device
        return host

    def give_back(self, host: int) -> None:
        """The host block's content is not needed after the next plan."""
        if host in self._sources:
            self._leaving.add(host)
            return
        self._saves.pop(host, None)
        heapq.heappush(self._free, host)

    def load(self, device: int, host: int) -> None:
        """Plan a copy of the host block to the device block."""
        assert device not in self._loads, f"block {device} is loaded twice"
        assert host not in self._sources, f"host block {host} is loaded twice"
        self._loads[device] = host
        self._sources.add(host)

    def cancel_load(self, device: int) -> None:
        """Nobody needs the device block's content; nothing happens if no load was planned."""
        if device not in self._loads or device in self._read:
            return
        host = self._loads.pop(device)
        self._sources.remove(host)
        if host in self._leaving:
            self._leaving.remove(host)
            self.give_back(host)

    def protect(self, device: int) -> None:
        """A copy of the next plan reads this device block, whoever holds it by then."""
        self._read.add(device)

    def forget_reads(self) -> None:
        """A new plan is begun; copies of the last one are in it, or will never be done."""
        self._read = set()

    def may_load_into(self, device: int) -> bool:
        """False when a load would come before somebody's read, or beside another load."""
        return device not in self._read and device not in self._loads

    def is_load_target(self, device: int) -> bool:
        """True when the next plan loads into this device block."""
        return device in self._loads

    def is_loading(self, host: int) -> bool:
        """True when the next plan loads from this host block."""
        return host in self._sources

    def take_moves(self) -> Moves:
        """All moves that were decided since the last call; a plan now carries them out."""
        saves = tuple(BlockMove(device, host) for host, device in self._saves.items())
        loads = tuple(BlockMove(device, host) for device, host in self._loads.items())
        self.num_saved += len(saves)
        self.num_loaded += len(loads)
        for host in self._leaving:
            heapq.heappush(self._free, host)
        self._saves, self._loads = {}, {}
        self._sources, self._leaving, self._read = set(), set(), set()
        return Moves(saves, loads)

    def check(self, used: set[int]) -> None:
        """Conservation: free + used by a node + leaving = ready; moves name what is in use."""
        free = set(self._free)
        assert len(free) == len(self._free), "a host block is free twice"
        assert not free & used, f"host blocks {free & used} are free and in use"
        assert not self._leaving & (used | free), "a host block is leaving and elsewhere"
        assert free | used | self._leaving == set(range(self._num_ready)), "host blocks leaked"
        assert not free & set(self._saves), "a free host block is saved into"
        assert self._sources == set(self._loads.values()), "loads are miscounted"
        assert self._sources <= used | self._leaving, "a free host block is loaded from"
