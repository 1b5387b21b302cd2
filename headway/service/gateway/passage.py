"""How a request of one endpoint goes through a model, ours or another server's, and back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headway.core.messages.path import EngineRequest
from headway.core.text.tokenizer import Tokenizer
from headway.service.gateway.forwarded import Outlet, ServedUpstream, call_of
from headway.service.gateway.generate import Generator, Request
from headway.service.gateway.http import Exchange
from headway.service.gateway.journey import Journey
from headway.service.gateway.routing import Routed, Routing
from headway.service.gateway.stream import SseStream
from headway.service.openai.forwarded import ForwardedRequest
from headway.service.openai.limits import ApiLimits
from headway.service.openai.responses import Answer, AnswerHead


class Passage(NamedTuple):
    """What is the same whichever model answers."""

    exchange: Exchange
    generator: Generator
    stream: SseStream
    journey: Journey
    routing: Routing
    api_limits: ApiLimits
    fingerprint: str
    created: int  # Unix time of the answer

    def answer(self, by: Routed, request: Request, made: Sequence[EngineRequest]) -> Answer:
        """An answer to be fed; its tokens are of the model's own vocabulary."""
        served = by.served
        tokenizer = _NO_TOKENS if isinstance(served, ServedUpstream) else served.encoder.tokenizer
        return self.generator.answer(self._head(by), request, made, tokenizer)

    def checked(self, by: Routed) -> Request:
        """The request as an engine of ours takes it, bounded as its route says.

        Raises a ClientError where it has what only other servers know.
        """
        request, bound = by.request, by.route.max_tokens
        if isinstance(request, ForwardedRequest):
            body = msgspec.json.encode(request.fields)
            made = self.generator.parse(body, {}, self.api_limits)
            request = msgspec.structs.replace(made, asker=request.asker, model=request.model)
        wanted = request.sampling.max_tokens
        if bound is None or (wanted is not None and wanted <= bound):
            return request
        sampling = msgspec.structs.replace(request.sampling, max_tokens=bound)
        return msgspec.structs.replace(request, sampling=sampling)

    async def forward(self, by: Routed, on_token: Callable[[], None]) -> None:
        """Through a model behind other servers, straight to the client.

        on_token  called before anything of the answer leaves
        """
        served, request = by.served, by.request
        assert isinstance(served, ServedUpstream), "it is another server's model"
        assert isinstance(request, ForwardedRequest), "only for engines of ours it is checked whole"
        outlet = _Noticed(Outlet(self.exchange, self.stream, self.journey), on_token)
        call = call_of(self.exchange, self.generator.name, request, self._head(by), by.route)
        await served.forwarder.run(call, outlet, self.journey)

    def _head(self, by: Routed) -> AnswerHead:
        return AnswerHead(
            id=f"{self.generator.id_prefix}-{self.exchange.id}",
            created=self.created,
            model=by.shown_model,
            system_fingerprint=self.fingerprint,
        )


class _Noticed:
    """An outlet that tells when something is about to leave."""

    def __init__(self, outlet: Outlet, on_token: Callable[[], None]) -> None:
        self._outlet = outlet
        self._on_token = on_token

    async def stream(self, data: bytes, *, is_last: bool) -> None:
        """Events of a streamed answer."""
        self._on_token()
        await self._outlet.stream(data, is_last=is_last)

    async def whole(self, body: bytes) -> None:
        """A complete answer."""
        self._on_token()
        await self._outlet.whole(body)


class _NoTokens:
    """For an answer that no model has made: it is text alone."""

    vocab_size = 0
    eos_ids: tuple[int, ...] = ()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """None."""
        return []

    def min_tokens(self, text: str) -> int:
        """None."""
        return 0

    def token_bytes(self, token_id: int) -> bytes:
        """Of no token."""
        return b""

    def is_special(self, token_id: int) -> bool:
        """There are none."""
        return False


_NO_TOKENS: Tokenizer = _NoTokens()
