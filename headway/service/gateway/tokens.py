"""The two endpoints that only turn text into token ids and back."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headway.core.base.errors import QueueFull
from headway.core.base.units import Seconds
from headway.service.gateway.encode import off_loop
from headway.service.gateway.models import Models, Served
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
        request = await off_loop(body, lambda: parse_tokenize(body, self._limits))
        served = self._models.own(request.model, allowed)
        return await self._bounded(served, lambda: self._encoded(served, request))

    async def _detokenize(self, body: bytes, allowed: Sequence[str]) -> bytes:
        request = await off_loop(body, lambda: parse_detokenize(body))
        served = self._models.own(request.model, allowed)
        return await self._bounded(
            served,
            lambda: detokenized(request, served.directory.known(), served.encoder.tokenizer),
        )

    async def _bounded(self, served: Served, work: Callable[[], bytes]) -> bytes:
        """The work's result, from a thread; raises QueueFull when too much waits already."""
        if self._num_waiting[served.name] >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} texts wait for their tokens already", RETRY_AFTER)
        self._num_waiting[served.name] += 1
        try:
            return await served.encoder.run(work)
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
