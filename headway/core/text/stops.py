"""Stop strings: find them across token borders, and hold back no more than needed."""

from collections.abc import Sequence
from typing import NamedTuple


class Stopped(NamedTuple):
    """A stop string was found."""

    text: str  # what may still leave: all before the stop, and the stop itself if kept
    stop: str


class StopMatcher:
    """Passes text through, except a tail that may be the beginning of a stop string.

    Text that is held back is a proper prefix of some stop string, so a stop string never
    leaves in part, and nothing else waits.
    """

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._held = ""

    def push(self, text: str) -> str | Stopped:
        """Take new text; returns what may leave, or the end if a stop string is complete.

        The earliest match wins, and of those at the same place the longest.
        """
        if not self._stops:
            return text
        pending = self._held + text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            self._held = ""
            return Stopped(pending[: at + len(stop)] if self._keep_stop else pending[:at], stop)
        keep = max(_overlap(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """The end came another way: what was held back may leave."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
