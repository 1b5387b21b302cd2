"""Text to token ids, in a few threads and never on the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from headway.core.text.tokenizer import Encodes, Tokenizer
from headway.service.openai.resolve import BoundedTokenizer
from headway.service.openai.schema import ChatRequest, CompletionRequest

T = TypeVar("T")

Prompts = tuple[tuple[int, ...], ...]


class Template(Protocol):
    """What is needed of a model's chat template."""

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Encodes,
        *,
        add_generation_prompt: bool,
    ) -> list[int]:
        """Ids of the rendered chat; raises InvalidRequest."""
        ...


class Encoder:
    """The model's tokenizer and template behind a small pool of threads.

    The pool's queue is as long as admission lets it be: requests are counted before they
    get here.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template, num_threads: int) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="encode")

    async def prompts(self, request: ChatRequest | CompletionRequest, context: int) -> Prompts:
        """Token ids, one entry a prompt; raises InvalidRequest.

        Text that cannot fit into a context of so many tokens is refused before it is encoded,
        if its bytes tell.
        """
        return await self.run(lambda: self._encode(request, context))

    async def run(self, work: Callable[[], T]) -> T:
        """Any other work that is too long for the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Drop what waits; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode(self, request: ChatRequest | CompletionRequest, context: int) -> Prompts:
        if isinstance(request, ChatRequest):
            bounded = BoundedTokenizer(self.tokenizer, request, 0, context)
            ids = self._template.encode(request.messages, bounded, add_generation_prompt=True)
            return (tuple(ids),)
        return tuple(
            _encode_prompt(prompt, BoundedTokenizer(self.tokenizer, request, index, context))
            for index, prompt in enumerate(request.prompts)
        )


def _encode_prompt(prompt: str | tuple[int, ...], tokenizer: Encodes) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return prompt
    # A raw prompt may be a conversation that the client rendered: its control tokens count.
    return tuple(tokenizer.encode(prompt, add_special=True, parse_special=True))
