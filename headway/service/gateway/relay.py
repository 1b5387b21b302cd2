"""One request through the engine: admit, encode, call, and every event to its answer."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from headway.core.base.clock import Clock
from headway.core.messages.path import EngineRequest, Event, Finished, Started
from headway.core.route.admit import Admitter
from headway.service.gateway.encode import Encoder
from headway.service.gateway.journey import Journey
from headway.service.openai.limits import ApiLimits
from headway.service.openai.resolve import (
    ModelFacts,
    check_against_model,
    check_answer_size,
    engine_requests,
)
from headway.service.openai.responses import Answer
from headway.service.openai.schema import ChatRequest, CompletionRequest
from headway.service.wire.transport import Mailbox, Pool

SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that a base never repeats within 2**64 requests

Request = ChatRequest | CompletionRequest
MakeAnswer = Callable[[Sequence[EngineRequest]], Answer]
Take = Callable[[Answer, Event, int], Awaitable[None]]


class Seeds:
    """Seeds of requests that bring none: random, or a fixed sequence from a base."""

    def __init__(self, base: int | None) -> None:
        self._next = base

    def draw(self) -> int:
        """The next seed, 0 .. 2**64 - 1."""
        if self._next is None:
            return secrets.randbits(64)
        seed = self._next
        self._next = (seed + SEED_STEP) % 2**64
        return seed


class Relay:
    """Takes parsed requests for one model through its pool."""

    def __init__(
        self,
        pool: Pool,
        admitter: Admitter,
        encoder: Encoder,
        clock: Clock,
        seeds: Seeds,
        limits: ApiLimits,
    ) -> None:
        self._pool = pool
        self._admitter = admitter
        self._encoder = encoder
        self._clock = clock
        self._seeds = seeds
        self._limits = limits

    async def run(
        self,
        request_id: str,
        request: Request,
        facts: Callable[[], ModelFacts],
        make_answer: MakeAnswer,
        take: Take,
        journey: Journey,
    ) -> None:
        """Give every event of the request to `take`, the prompt's index with it.

        Raises the answer's failure, QueueFull, ShuttingDown, ReplicaNotReady, ReplicaLost
        and InvalidRequest. However it ends, the engine works on nothing of it afterwards.
        """
        num_prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
        self._admitter.admit(
            request_id, num_prompts * request.n, self._clock.now(), request.asker.slo_class
        )
        unfinished: set[str] = set()
        boxes: dict[str, Mailbox] = {}
        try:
            request = await self._held(request_id, request)
            sent = await self._encode(request_id, request, facts())
            asked = request.sampling.max_tokens
            await journey.sized(
                sum(len(each.prompt) for each in sent),
                sum(
                    each.num_choices * journey.reserved_for(each.sampling.max_tokens, asked)
                    for each in sent
                ),
            )
            journey.sent(sent)
            for each in sent:
                boxes[each.id] = self._pool.call(each)
                unfinished.add(each.id)
            answer = make_answer(sent)
            numbers = {each.id: index for index, each in enumerate(sent)}
            async with aclosing(merged(boxes)) as events:
                async for event in events:
                    journey.saw(event)
                    self._note(request_id, event, sent[numbers[event.request_id]], unfinished)
                    await take(answer, event, numbers[event.request_id])
        finally:
            for engine_id in unfinished:
                self._pool.cancel(engine_id)
            journey.left({each: boxes[each] for each in unfinished})
            self._admitter.finished(request_id, self._clock.now())
            self._pool.release(request_id)

    async def _held(self, request_id: str, request: Request) -> Request:
        """Once the model is loaded: the request, with what is left of its budget."""
        budget = request.asker.first_token_budget_s
        waited = await self._pool.hold(request_id, budget)
        if budget is None or not waited:
            return request
        left = max(0.0, budget - waited)
        asker = msgspec.structs.replace(request.asker, first_token_budget_s=left)
        return msgspec.structs.replace(request, asker=asker)

    async def _encode(
        self, request_id: str, request: Request, facts: ModelFacts
    ) -> tuple[EngineRequest, ...]:
        check_against_model(request, facts)
        encoded = await self._encoder.encode(request, facts.max_model_len)
        seed = self._seeds.draw()
        sent = engine_requests(request, encoded.prompts, facts, request_id, seed, encoded.bad_words)
        check_answer_size(sent, self._limits)
        num_tokens = sum(len(each.prompt) for each in sent)
        self._admitter.weigh(request_id, num_tokens, self._clock.now(), num_prompts=len(sent))
        return sent

    def _note(self, request_id: str, event: Event, of: EngineRequest, unfinished: set[str]) -> None:
        if isinstance(event, Started):
            self._admitter.started(request_id, of.num_choices, len(of.prompt))
        elif isinstance(event, Finished):
            unfinished.discard(of.id)
            if not unfinished:  # before the answer's last bytes: its reader may ask again at once
                self._admitter.finished(request_id, self._clock.now())


async def merged(boxes: Mapping[str, Mailbox]) -> AsyncGenerator[Event]:
    """The events of all mailboxes as they come; each box's own order is kept.

    Raises ReplicaLost. At most one event a box is taken ahead of the reader, so that
    mailboxes go on merging for a reader that is slow.
    """
    if len(boxes) == 1:  # nearly always, and without a task an event
        (box,) = boxes.values()
        event: Event | None = None
        while not isinstance(event, Finished):
            event = await box.get()
            yield event
        return
    open_ = {asyncio.ensure_future(box.get()): box for box in boxes.values()}
    try:
        while open_:
            done, _ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                box = open_.pop(task)
                event = task.result()
                if not isinstance(event, Finished):
                    open_[asyncio.ensure_future(box.get())] = box
                yield event
    finally:
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
