"""A first answer, kept back until it is known whether the client gets it."""

from typing import NamedTuple

from headway.core.base.errors import UpstreamBroken
from headway.core.base.units import Seconds
from headway.core.messages.path import Event, Finished
from headway.core.route.cascade import Confidence
from headway.service.gateway.relay import Take
from headway.service.openai.errors import failure_of
from headway.service.openai.responses import Answer
from headway.service.upstream.ends import Outlet

MOST_BYTES = 16 * 1024 * 1024  # of a stream that is kept here


class _Piece(NamedTuple):
    """Bytes of another server's answer, as the client would get them."""

    data: bytes
    num_tokens: int  # of all pieces so far
    is_whole: bool  # not a part of a stream


class Draft:
    """What an engine of ours says of it, or another server: it takes both, as `Take` and Outlet."""

    def __init__(self) -> None:
        self.confidence = Confidence()
        self._answer: Answer | None = None
        self._events: list[tuple[Event, int]] = []
        self._pieces: list[_Piece] = []
        self._size = 0

    @property
    def is_there(self) -> bool:
        """Whether there is anything that could go out."""
        return self._answer is not None or bool(self._pieces)

    async def take(self, answer: Answer, event: Event, prompt: int) -> None:
        """An event of an engine of ours; raises the engine's failure."""
        self._answer = answer
        if isinstance(event, Finished) and (failure := failure_of(event)) is not None:
            raise failure
        self.confidence.saw(event)
        self._events.append((event, prompt))

    def push(self, data: bytes, num_tokens: int) -> bool:
        """Left to `stream`, which may refuse it."""
        return False

    async def stream(self, data: bytes, num_tokens: int, *, is_last: bool) -> None:
        """Events of another server's stream; raises UpstreamBroken for more than can be kept."""
        self._size += len(data)
        if self._size > MOST_BYTES:
            problem = f"its answer has more than the {MOST_BYTES} bytes that are kept back"
            raise UpstreamBroken(problem, Seconds(1.0))
        self._pieces.append(_Piece(data, num_tokens, is_whole=False))

    async def whole(self, body: bytes, num_tokens: int) -> None:
        """Another server's complete answer."""
        self._pieces.append(_Piece(body, num_tokens, is_whole=True))

    def begun(self) -> None:
        """Nobody waits for the first token of a draft."""

    def forget(self) -> None:
        """It failed on the way: nothing of it can go out."""
        self._answer = None
        self._events.clear()
        self._pieces.clear()

    async def play(self, take: Take, outlet: Outlet) -> None:
        """Give everything to whom it was meant for."""
        if self._answer is not None:
            for event, prompt in self._events:
                await take(self._answer, event, prompt)
            return
        last = self._pieces[-1]
        if last.is_whole:
            return await outlet.whole(last.data, last.num_tokens)
        before = b"".join(each.data for each in self._pieces[:-1])
        if before:
            await outlet.stream(before, last.num_tokens, is_last=False)
        await outlet.stream(last.data, last.num_tokens, is_last=True)
