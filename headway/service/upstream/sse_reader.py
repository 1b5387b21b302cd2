"""Server-sent events out of bytes that may be cut anywhere."""

from headway.core.base.errors import UpstreamBroken
from headway.core.base.units import Seconds

MAX_EVENT_BYTES = 4 * 1024 * 1024  # log-probabilities of a large step are some 100 KiB
BOM = b"\xef\xbb\xbf"


class SseReader:
    """Feed it bytes as they come, and get the data of every event that they complete.

    Lines end in LF, CRLF or CR; comments, names and ids of events are skipped; several data
    lines of one event are joined by LF. Bytes are never decoded here, so characters may be cut.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()  # of which no end has come
        self._data: list[bytes] = []  # of the event whose end has not come
        self._size = 0
        self._is_first = True
        self._skips_lf = False  # the last piece ended in CR: an LF that follows is its second half

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes, in order; raises UpstreamBroken."""
        is_between = not (self._line or self._data or self._is_first or self._skips_lf)
        if is_between and len(piece) <= self._max and _is_event(piece):
            return [piece[6:-2]]
        if self._skips_lf and piece:
            self._skips_lf = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._skips_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = piece.rfind(b"\n")
        if end < 0:
            self._line += piece
            self._check(len(self._line))
            return []
        self._line += piece[:end]
        lines = bytes(self._line).split(b"\n")
        self._line = bytearray(piece[end + 1 :])
        found: list[bytes] = []
        for line in lines:
            self._take(line, found)
        self._check(len(self._line))
        return found

    def finish(self) -> list[bytes]:
        """The connection was closed cleanly: what an end without a blank line leaves.

        The standard drops it; servers that close right after `data: [DONE]` mean it.
        """
        found: list[bytes] = []
        if self._line:
            self._take(bytes(self._line), found)
            self._line.clear()
        self._take(b"", found)
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(BOM)
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
            self._check(0)
        elif line == b"data":
            self._data.append(b"")

    def _check(self, more: int) -> None:
        if self._size + more > self._max:
            raise UpstreamBroken(
                f"the upstream sent an event of more than {self._max} bytes", Seconds(1.0)
            )


def _is_event(piece: bytes) -> bool:
    """Whether it is one event of one line, as nearly all pieces are."""
    return (
        piece.startswith(b"data: ")
        and piece.endswith(b"\n\n")
        and piece.find(b"\n") == len(piece) - 2
        and b"\r" not in piece
    )
