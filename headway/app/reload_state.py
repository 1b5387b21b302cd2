"""How reloads of the configuration ended, for metrics."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.core.fleet.reload_metrics import (
    CONFIG_HASH,
    CONFIG_RELOAD_SECONDS,
    CONFIG_RELOAD_SUCCESSFUL,
    CONFIG_RELOADS,
    MODELS_LEAVING,
)
from headway.service.observe.prometheus import Sample

HASH_BYTES = 6  # a float holds 48 bits exactly


class ReloadState:
    """What was taken last, and how often which outcome was met."""

    def __init__(self, file: str, wall_clock: Callable[[], float] = time.time) -> None:
        """The file that the start has read counts as taken."""
        self._file = file
        self._wall_clock = wall_clock
        self._counts = {"ok": 0, "refused": 0}
        self._is_successful = True
        self._at = wall_clock()
        self._hash = hash_of(file)
        self.num_leaving = 0  # models that the last changes left out, and that are still used

    def taken(self, hash_: int) -> None:
        """A file with this hash is in force from now on."""
        self._counts["ok"] += 1
        self._is_successful, self._at, self._hash = True, self._wall_clock(), hash_

    def refused(self) -> None:
        """What was in force stays so."""
        self._counts["refused"] += 1
        self._is_successful = False

    def samples(self) -> Iterator[Sample]:
        """For a scrape."""
        for outcome, count in self._counts.items():
            yield Sample(CONFIG_RELOADS, count, {"outcome": outcome})
        yield Sample(CONFIG_RELOAD_SUCCESSFUL, float(self._is_successful))
        yield Sample(CONFIG_RELOAD_SECONDS, self._at)
        yield Sample(CONFIG_HASH, self._hash)
        yield Sample(MODELS_LEAVING, self.num_leaving)


def hash_of(file: str) -> int:
    """The same number for the same bytes; 0 for a file that cannot be read."""
    try:
        content = Path(file).read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(content).digest()[:HASH_BYTES], "big")
