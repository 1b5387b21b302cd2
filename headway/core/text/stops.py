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
    leaves in part, and nothing else waits. O(new characters x stops), however long the stops
    are and however much of them has matched.
    """

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stops = tuple(_Stop(stop) for stop in stops)
        self._keep_stop = keep_stop
        self._held = ""

    def push(self, text: str) -> str | Stopped:
        """Take new text; returns what may leave, or the end if a stop string is complete.

        The earliest match wins, and of those at the same place the longest.
        """
        if not self._stops:
            return text
        pending = self._held + text
        found = [
            (len(self._held) + end - len(stop.text), -len(stop.text), stop.text)
            for stop in self._stops
            if (end := stop.feed(text)) is not None
        ]
        if found:
            at, _, matched = min(found)
            self._forget()
            until = at + len(matched) if self._keep_stop else at
            return Stopped(pending[:until], matched)
        keep = max(stop.num_matched for stop in self._stops)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """The end came another way: what was held back may leave."""
        held = self._held
        self._forget()
        return held

    def _forget(self) -> None:
        self._held = ""
        for stop in self._stops:
            stop.num_matched = 0


class _Stop:
    """One stop string, and how many of its characters the text so far ends with.

    Source: Knuth, Morris and Pratt 1977. The borders are found as far as the text has matched,
    so that long stops cost nothing before they do.
    """

    __slots__ = ("_borders", "num_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        # [k]: the longest proper beginning of text[: k + 1] that it also ends with.
        self._borders = [0]

    def feed(self, text: str) -> int | None:
        """Where in `text` the first match ends, or None; nothing is fed after a match."""
        stop, matched = self.text, self.num_matched
        start = 0 if matched else text.find(stop[0])
        if start < 0:
            return None
        for index in range(start, len(text)):
            char = text[index]
            while matched and stop[matched] != char:
                matched = self._borders[matched - 1]
            if stop[matched] == char:
                matched += 1
                if matched == len(stop):
                    return index + 1
                if matched > len(self._borders):
                    self._add_border(stop[matched - 1])
        self.num_matched = matched
        return None

    def _add_border(self, char: str) -> None:
        border = self._borders[-1]
        while border and self.text[border] != char:
            border = self._borders[border - 1]
        self._borders.append(border + 1 if self.text[border] == char else 0)
