"""How well a KV pool is used: positions with computed tokens, positions that lie idle."""

from collections.abc import Iterable, Sequence

import msgspec

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockGrid


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over the time in which requests waited; shares of positions.

    utilisation   positions with computed tokens of live or cached sequences / all positions
    live          the same of live sequences alone
    waste         positions without a token in live sequences' blocks / positions in them
    running       sequences
    """

    seconds: float  # in which requests waited
    utilisation: float
    live: float
    waste: float
    running: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A burst of requests against a pool that nobody gives back to."""

    requests: int  # that found room, in order, until the first did not
    tokens: int  # of theirs
    used: float  # share of all positions that hold them


class MemoryMeter:
    """Looks at an engine after each of its steps; `probe` is for LoopReplica."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._filled = self._live = self._held = self._running = 0.0
        self._positions = 0
        self.most_running = 0

    def probe(self, core: EngineCore, took: Seconds) -> None:
        """Count a step that took so long, when anybody waits after it. O(live blocks)."""
        running = list(core.scheduler.running.values())
        self.most_running = max(self.most_running, len(running))
        if not len(core.scheduler.queue):
            return
        kv = core.scheduler.kv
        tables = ((s.table.blocks, s.num_computed) for s in running if s.table is not None)
        filled, held = filled_positions(tables, kv.block_size)
        self._positions = kv.num_blocks * kv.block_size
        self._seconds += took
        self._live += took * filled
        self._filled += took * (filled + kv.num_cached * kv.block_size)
        self._held += took * held
        self._running += took * len(running)

    def use(self) -> MemoryUse:
        """The averages; all 0 when nobody ever waited."""
        all_positions = self._seconds * self._positions
        return MemoryUse(
            seconds=self._seconds,
            utilisation=_share(self._filled, all_positions),
            live=_share(self._live, all_positions),
            waste=_share(self._held - self._live, self._held),
            running=_share(self._running, self._seconds),
        )


def filled_positions(
    tables: Iterable[tuple[Sequence[int], int]], block_size: int
) -> tuple[int, int]:
    """Positions with a computed token, and all positions, of some block tables.

    A table is its blocks in order and the number of its computed tokens; a block that several
    tables share counts once, with the most that any of them has in it.
    """
    filled: dict[int, int] = {}
    for blocks, num_computed in tables:
        for index, block in enumerate(blocks):
            inside = min(block_size, max(0, num_computed - index * block_size))
            filled[block] = max(inside, filled.get(block, 0))
    return sum(filled.values()), block_size * len(filled)


def hold(lengths: Iterable[int], num_blocks: int, block_size: int) -> Held:
    """Give sequences of these lengths their blocks at once, until one finds too few."""
    width = num_blocks
    lengths = list(lengths)
    kv = KvManager(
        num_blocks, block_size, BlockGrid(len(lengths), width), enable_prefix_caching=False
    )
    count = tokens = 0
    for length in lengths:
        table = kv.open((), b"", use_cache=False)
        if kv.grow(table, 0, length) is None:
            break
        count += 1
        tokens += length
    return Held(requests=count, tokens=tokens, used=tokens / (num_blocks * block_size))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
