"""Text to token ids, in a few threads and never on the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from headway.core.text.tokenizer import Encodes, Tokenizer
from headway.service.openai.resolve import BoundedTokenizer
from headway.service.openai.schema import ChatRequest, CompletionRequest

T = TypeVar("T")

Prompts = tuple[tuple[int, ...], ...]

BIG_BODY = 64 * 1024  # bytes; longer ones are parsed in a thread, to keep the loop free


async def off_loop(body: bytes, parse: Callable[[], T]) -> T:
    """What `parse` makes of a body, in a thread if it is big."""
    return parse() if len(body) <= BIG_BODY else await asyncio.to_thread(parse)


class Encoded(NamedTuple):
    """The token ids of a request: one entry a prompt, and its bad words."""

    prompts: Prompts
    bad_words: Prompts


class Template(Protocol):
    """What is needed of a model's chat template."""

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Encodes,
        *,
        add_generation_prompt: bool,
        continue_final: bool,
        arguments: Mapping[str, object],
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

    async def encode(self, request: ChatRequest | CompletionRequest, context: int) -> Encoded:
        """Token ids of all its texts; raises InvalidRequest.

        Text that cannot fit into a context of so many tokens is refused before it is encoded,
        if its bytes tell and it is not to be truncated.
        """
        return await self.run(lambda: self._encode(request, context))

    def chat(self, request: ChatRequest, tokenizer: Encodes) -> list[int]:
        """Token ids of a chat, in the calling thread; raises InvalidRequest."""
        return self._template.encode(
            request.messages,
            tokenizer,
            add_generation_prompt=request.add_generation_prompt,
            continue_final=request.continue_final,
            arguments=request.template_arguments,
        )

    async def run(self, work: Callable[[], T]) -> T:
        """Any other work that is too long for the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self, *, drop: bool = True) -> None:
        """Take no more work; `drop` what waits. What runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=drop)

    def _encode(self, request: ChatRequest | CompletionRequest, context: int) -> Encoded:
        def tokenizer(index: int) -> Encodes:
            if request.truncate_to is not None:
                return self.tokenizer
            return BoundedTokenizer(self.tokenizer, request, index, context)

        prompts: Prompts
        if isinstance(request, ChatRequest):
            prompts = (tuple(self.chat(request, tokenizer(0))),)
        else:
            prompts = tuple(
                _encode_prompt(prompt, tokenizer(index))
                for index, prompt in enumerate(request.prompts)
            )
        return Encoded(prompts, _encode_bad_words(request.bad_words, self.tokenizer))


def _encode_prompt(prompt: str | tuple[int, ...], tokenizer: Encodes) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return prompt
    # A raw prompt may be a conversation that the client rendered: its control tokens count.
    return tuple(tokenizer.encode(prompt, add_special=True, parse_special=True))


def _encode_bad_words(words: Sequence[str], tokenizer: Encodes) -> Prompts:
    """Each word as it is spelt within a text, and after a space."""
    spelt = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
    found = (
        tuple(tokenizer.encode(text, add_special=False, parse_special=False)) for text in spelt
    )
    return tuple(dict.fromkeys(ids for ids in found if ids))
