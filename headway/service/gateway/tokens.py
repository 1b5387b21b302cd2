"""The two endpoints that only turn text into token ids and back."""

from collections.abc import Awaitable, Callable, Mapping

from headway.core.base.errors import QueueFull
from headway.core.base.units import Seconds
from headway.service.gateway.encode import Encoder
from headway.service.gateway.model import Directory
from headway.service.openai.limits import ApiLimits
from headway.service.openai.resolve import check_model_name
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

Answers = Callable[[bytes], Awaitable[bytes]]  # body to body


class TokenPages:
    """Answers by path; nothing of the engine is used, so they are not part of its queue."""

    def __init__(self, encoder: Encoder, directory: Directory, limits: ApiLimits) -> None:
        self._encoder = encoder
        self._directory = directory
        self._limits = limits
        self._num_waiting = 0
        self.by_path: Mapping[str, Answers] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/tokenize": self._tokenize,
            "/v1/detokenize": self._detokenize,
        }

    async def _tokenize(self, body: bytes) -> bytes:
        return await self._bounded(lambda: self._encoded(body))

    async def _detokenize(self, body: bytes) -> bytes:
        return await self._bounded(lambda: self._decoded(body))

    async def _bounded(self, work: Callable[[], bytes]) -> bytes:
        """The work's result, from a thread; raises QueueFull when too much waits already."""
        if self._num_waiting >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} texts wait for their tokens already", RETRY_AFTER)
        self._num_waiting += 1
        try:
            return await self._encoder.run(work)
        finally:
            self._num_waiting -= 1

    def _encoded(self, body: bytes) -> bytes:
        request = parse_tokenize(body, self._limits)
        facts = self._directory.facts()
        check_model_name(request.model, facts)
        return tokenized(self._ids(request), request, facts, self._encoder.tokenizer)

    def _ids(self, request: TokenizeRequest) -> list[int]:
        if isinstance(request.source, ChatRequest):
            return self._encoder.chat(request.source, self._encoder.tokenizer)
        return self._encoder.tokenizer.encode(
            request.source, add_special=request.add_special, parse_special=True
        )

    def _decoded(self, body: bytes) -> bytes:
        request = parse_detokenize(body)
        facts = self._directory.facts()
        check_model_name(request.model, facts)
        return detokenized(request, facts, self._encoder.tokenizer)
