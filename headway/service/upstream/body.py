"""The body of one answer on its way: kept for a reader, or handed on as it comes."""

import asyncio
from collections import deque
from collections.abc import Callable

from headway.core.base.errors import UpstreamBroken

Take = Callable[[bytes], bool]  # takes a piece; False: no more of them for now


class Body:
    """Written by a connection, read by one task in one of two ways.

    read  waits, and returns what came meanwhile: for who may have to wait himself
    pump  hands each piece to a callback in the turn of the event loop that brought it: nothing is
          woken and nothing waits, which is most of what a small piece costs otherwise
    """

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._take: Take | None = None
        self.num_bytes = 0  # that wait for their reader
        self.is_whole = False  # its last byte is here
        self.lost: UpstreamBroken | None = None  # why no more comes

    def put(self, piece: bytes) -> None:
        """A piece; `told` follows at the end of the turn."""
        self._pieces.append(piece)
        self.num_bytes += len(piece)

    def told(self) -> None:
        """What this turn brought is here: pieces, the end, or a failure."""
        if self._take is not None and self._pieces and not self._take(self._all()):
            self._take = None
        if self._take is None or self.is_whole or self.lost is not None:
            self._wake.set()

    async def read(self) -> bytes:
        """What has come since the last call; b"" at the end. Raises UpstreamBroken."""
        while not self._pieces:
            if self.is_whole:
                return b""
            if self.lost is not None:
                raise self.lost
            self._wake.clear()
            await self._wake.wait()
        return self._all()

    async def pump(self, take: Take) -> bool:
        """Hand pieces to `take` until it says False; False: no more come, and `read` tells why."""
        if self._pieces and not take(self._all()):
            return True
        if self.is_whole or self.lost is not None:
            return False
        self._wake.clear()
        self._take = take
        try:
            await self._wake.wait()
            return self._take is None
        finally:
            self._take = None

    @property
    def is_read(self) -> bool:
        """Whether nothing waits."""
        return not self._pieces

    def _all(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.num_bytes = 0
        return data
