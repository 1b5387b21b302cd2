"""Both ends of a request that is forwarded: where its answer goes, and who counts it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headway.core.base.units import Seconds
from headway.core.messages.path import Event

Gained = Callable[[str, int, int, Seconds], None]  # the request's id, choice, tokens, when


class Outlet(Protocol):
    """Where the answer goes; raises what ends the request when its client is gone."""

    def push(self, data: bytes, num_tokens: int) -> bool:
        """Events of a streamed answer, if they can leave at once; False: nothing was taken.

        num_tokens  of all events so far
        """
        ...

    async def stream(self, data: bytes, num_tokens: int, *, is_last: bool) -> None:
        """The same, once they can leave; the last ones complete the answer."""
        ...

    async def whole(self, body: bytes, num_tokens: int) -> None:
        """A complete answer."""
        ...

    def begun(self) -> None:
        """The first tokens of a complete answer are there."""
        ...


class Sent(NamedTuple):
    """A request on its way to a replica."""

    id: str
    replica: str
    prompt_tokens: int  # may be an estimate
    max_tokens: int  # of each choice; what is reserved for it where the client says nothing
    num_choices: int
    failovers: int  # times that it was tried elsewhere before


class Witness(Protocol):
    """What counts the request on its way; a gateway's Journey is one."""

    def reserved_for(self, max_tokens: int, asked: int | None) -> int:
        """Tokens to reserve for a choice that may have `max_tokens`; `asked` as by the client."""
        ...

    async def sized(self, prompt_tokens: int, max_tokens: int) -> None:
        """Before anything is sent; raises RateLimited."""
        ...

    def forwarded(self, sent: Sent) -> None:
        """It goes there now."""
        ...

    @property
    def gained(self) -> Gained:
        """What to call when tokens of a choice came."""
        ...

    def saw(self, event: Event) -> None:
        """It ended well."""
        ...
