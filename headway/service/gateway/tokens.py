"""The two endpoints that only turn text into token ids and back."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from headway.core.base.errors import QueueFull
from headway.core.base.units import Seconds
from headway.service.gateway.encode import off_loop
from headway.service.gateway.forwarded import ServedUpstream
from headway.service.gateway.models import AnyServed, Models, Served
from headway.service.openai.forwarded import model_of, parse_forwarded_tokenize
from headway.service.openai.limits import ApiLimits
from headway.service.openai.schema import ChatRequest
from headway.service.openai.tokens import (
    TokenizeRequest,
    detokenized,
    parse_detokenize,
    parse_tokenize,
    tokenized,
)

MAX_WAITING = 64  # requests here; those that generate share the threads and must not wait long
RETRY_AFTER = Seconds(1.0)
T = TypeVar("T")

# Body, and names of the models that the caller may use (empty: all), to body.
Answers = Callable[[bytes, Sequence[str]], Awaitable[bytes]]


class TokenPages:
    """Answers by path; nothing of the engine is used, so they are not part of its queue."""

    def __init__(self, models: Models, limits: ApiLimits) -> None:
        self._models = models
        self._limits = limits
        self._num_waiting: Counter[str] = Counter()  # by the model's name
        self.by_path: Mapping[str, Answers] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/tokenize": self._tokenize,
            "/v1/detokenize": self._detokenize,
        }

    async def _tokenize(self, body: bytes, allowed: Sequence[str]) -> bytes:
        there = await off_loop(body, lambda: self._elsewhere(body, allowed))
        if there is not None:
            asked = await off_loop(body, lambda: parse_forwarded_tokenize(body, self._limits))
            return msgspec.json.encode(
                await self._counted(there, there.forwarder.tokens.tokenize(asked))
            )
        request = await off_loop(body, lambda: parse_tokenize(body, self._limits))
        served = self._models.own(request.model, allowed)
        return await self._bounded(served, lambda: self._encoded(served, request))

    async def _detokenize(self, body: bytes, allowed: Sequence[str]) -> bytes:
        request = await off_loop(body, lambda: parse_detokenize(body))
        there = await off_loop(body, lambda: self._elsewhere(body, allowed))
        if there is not None:
            told = there.forwarder.tokens.detokenize(request.tokens or [])
            return msgspec.json.encode(await self._counted(there, told))
        served = self._models.own(request.model, allowed)
        return await self._bounded(
            served,
            lambda: detokenized(request, served.directory.known(), served.encoder.tokenizer),
        )

    def _elsewhere(self, body: bytes, allowed: Sequence[str]) -> ServedUpstream | None:
        """The model that is meant, if another server answers for it; raises ModelNotFound."""
        if not self._models.has_upstreams:
            return None
        served = self._models.find(model_of(body, {}), allowed)
        return served if isinstance(served, ServedUpstream) else None

    async def _bounded(self, served: Served, work: Callable[[], bytes]) -> bytes:
        """The work's result, from a thread; raises QueueFull when too much waits already."""
        return await self._counted(served, served.encoder.run(work))

    async def _counted(self, served: AnyServed, work: Coroutine[Any, Any, T]) -> T:
        """The same for work of any kind."""
        if self._num_waiting[served.name] >= MAX_WAITING:
            work.close()
            raise QueueFull(f"{MAX_WAITING} texts wait for their tokens already", RETRY_AFTER)
        self._num_waiting[served.name] += 1
        try:
            return await work
        finally:
            self._num_waiting[served.name] -= 1

    def _encoded(self, served: Served, request: TokenizeRequest) -> bytes:
        facts, encoder = served.directory.known(), served.encoder
        if isinstance(request.source, ChatRequest):
            ids = encoder.chat(request.source, encoder.tokenizer)
        else:
            ids = encoder.tokenizer.encode(
                request.source, add_special=request.add_special, parse_special=True
            )
        return tokenized(ids, request, facts, encoder.tokenizer)
