"""What the accumulated choices look like to a client: chat, completion and native form."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.base.errors import HeadwayError
from headway.core.messages.path import EngineRequest, Event, TokenLogprob
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai import sse
from headway.service.openai.accumulate import Accumulator, AnswerPlan, Choice, Delta
from headway.service.openai.answer_schema import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    NativeEvent,
    PromptScores,
    UsageBody,
)
from headway.service.openai.errors import to_event
from headway.service.openai.logprobs import (
    Entry,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from headway.service.openai.plans import chat_plan, completion_plan
from headway.service.openai.schema import ChatRequest, CompletionRequest

Scores = Callable[[int], Sequence[TokenLogprob | None] | None]  # of a prompt, by its index

_encode = msgspec.json.Encoder().encode


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every part of an answer."""

    id: str  # "chatcmpl-..." or "cmpl-..."
    created: int  # Unix time in seconds
    model: str  # the name the client used
    system_fingerprint: str


class AnswerFormat(Protocol):
    """One form of answer; all methods are pure but for counting in the native one."""

    def chunks(self, delta: Delta, usage: UsageBody | None) -> list[bytes]:
        """The delta as JSON of zero or more events, each with the usage so far if it is given."""
        ...

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """The event with the usage and no choices."""
        ...

    def whole(self, choices: Sequence[Choice], usage: UsageBody, scores: Scores) -> bytes:
        """The answer as one JSON body; `scores` are those of the prompts."""
        ...


class Answer:
    """One request's answer: feed it every event, then either stream it or take it whole."""

    def __init__(self, form: AnswerFormat, accumulator: Accumulator) -> None:
        self._form = form
        self._accumulator = accumulator

    @property
    def is_done(self) -> bool:
        """True after the last event, or the first failure, of any prompt."""
        return self._accumulator.is_done

    @property
    def failure(self) -> HeadwayError | None:
        """What went wrong, if anything did."""
        return self._accumulator.failure

    @property
    def usage(self) -> UsageBody:
        """Tokens of all prompts that have ended so far."""
        return self._accumulator.usage()

    @property
    def num_told(self) -> int:
        """Tokens whose text has been given out so far; those that gave none go with the next."""
        return self._accumulator.num_told

    def feed(self, event: Event, prompt: int = 0) -> None:
        """Take an event of that prompt, to be read by `response`."""
        self._accumulator.feed(event, prompt)

    def stream(self, event: Event, prompt: int = 0) -> bytes:
        """Take an event of that prompt and give the bytes to send for it, possibly none.

        The last ones end with [DONE], or are an error event without it. Nothing may be
        fed once `is_done`.
        """
        deltas = self._accumulator.feed(event, prompt)
        is_counted = self._accumulator.plan.continuous_usage
        usage = self._accumulator.usage_so_far() if is_counted else None
        out = [sse.event(data) for delta in deltas for data in self._form.chunks(delta, usage)]
        if self.failure is not None:
            out.append(to_event(self.failure))
        elif self.is_done:
            if self._accumulator.plan.include_usage:
                out.append(sse.event(self._form.usage_chunk(self.usage)))
            out.append(sse.DONE)
        return b"".join(out)

    def response(self) -> bytes:
        """The whole answer as JSON; raises the failure if there was one."""
        if self.failure is not None:
            raise self.failure
        accumulator = self._accumulator
        return self._form.whole(accumulator.choices, self.usage, accumulator.prompt_scores)


class ChatFormat:
    """`/v1/chat/completions`: a role chunk, content chunks and a finish chunk a choice."""

    def __init__(self, head: AnswerHead, tokenizer: Tokenizer, plan: AnswerPlan) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._plan = plan
        self._no_usage: UnsetType | None = None if plan.include_usage else UNSET

    def chunks(self, delta: Delta, usage: UsageBody | None) -> list[bytes]:
        """Entries ride on the content chunk, or on the finish chunk when there is no text."""
        made: list[ChatChunkChoice] = []
        if delta.is_first:
            role = ChatDelta(role="assistant", content="")
            made.append(ChatChunkChoice(index=delta.choice, delta=role))
        entries, ids = delta.entries, _ids(delta.token_ids, self._plan)
        if delta.text:
            choice = ChatChunkChoice(
                index=delta.choice,
                delta=ChatDelta(content=delta.text),
                logprobs=self._logprobs(entries),
                token_ids=ids,
            )
            made.append(choice)
            entries, ids = (), UNSET
        if delta.finish is not None:
            choice = ChatChunkChoice(
                index=delta.choice,
                delta=ChatDelta(),
                logprobs=self._logprobs(entries) if entries else None,
                finish_reason=delta.finish,
                stop_reason=_or_unset(delta.stop_reason),
                token_ids=ids,
            )
            made.append(choice)
        prompts = [self._prompt_ids(is_first=delta.is_first and i == 0) for i in range(len(made))]
        told = self._no_usage if usage is None else usage
        return [self._body([each], told, ids) for each, ids in zip(made, prompts, strict=True)]

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """The last chunk before [DONE]."""
        return self._body([], usage, UNSET)

    def whole(self, choices: Sequence[Choice], usage: UsageBody, scores: Scores) -> bytes:
        """A `chat.completion` object."""
        made = [
            ChatChoice(
                index=choice.index,
                message=AnswerMessage(content=choice.text),
                logprobs=self._logprobs(choice.entries),
                finish_reason=choice.finish,
                stop_reason=_or_unset(choice.stop_reason),
                token_ids=_ids(choice.token_ids, self._plan),
            )
            for choice in choices
        ]
        head = self._head
        return _encode(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=made,
                usage=usage,
                prompt_token_ids=self._prompt_ids(is_first=True),
                prompt_logprobs=_prompt_scores(scores(0), self._tokenizer),
            )
        )

    def _body(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageBody | UnsetType | None,
        prompt_ids: list[int] | UnsetType,
    ) -> bytes:
        head = self._head
        return _encode(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=choices,
                usage=usage,
                prompt_token_ids=prompt_ids,
            )
        )

    def _prompt_ids(self, *, is_first: bool) -> list[int] | UnsetType:
        return list(self._plan.prompts[0]) if is_first and self._plan.prompts else UNSET

    def _logprobs(self, entries: Sequence[Entry]) -> ChatLogprobs | None:
        if not self._plan.has_logprobs:
            return None
        return ChatLogprobs(content=chat_logprobs(entries, self._tokenizer))


class CompletionFormat:
    """`/v1/completions`: text chunks and a finish chunk a choice."""

    def __init__(self, head: AnswerHead, tokenizer: Tokenizer, plan: AnswerPlan) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._plan = plan
        self._no_usage: UnsetType | None = None if plan.include_usage else UNSET
        self._told: set[int] = set()  # choices whose prompt's ids have been sent

    def chunks(self, delta: Delta, usage: UsageBody | None) -> list[bytes]:
        """Entries ride on the text chunk, or on the finish chunk when there is no text."""
        made: list[CompletionChoice] = []
        entries, ids = delta.entries, _ids(delta.token_ids, self._plan)
        if delta.text:
            choice = CompletionChoice(
                index=delta.choice,
                text=delta.text,
                logprobs=self._logprobs(entries),
                token_ids=ids,
                prompt_token_ids=self._prompt_ids_once(delta.choice),
            )
            made.append(choice)
            entries, ids = (), UNSET
        if delta.finish is not None:
            choice = CompletionChoice(
                index=delta.choice,
                text="",
                logprobs=self._logprobs(entries) if entries else None,
                finish_reason=delta.finish,
                stop_reason=_or_unset(delta.stop_reason),
                token_ids=ids,
                prompt_token_ids=self._prompt_ids_once(delta.choice),
            )
            made.append(choice)
        told = self._no_usage if usage is None else usage
        return [self._body([each], told) for each in made]

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """The last chunk before [DONE]."""
        return self._body([], usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody, scores: Scores) -> bytes:
        """A `text_completion` object."""
        made = [
            CompletionChoice(
                index=choice.index,
                text=choice.text,
                logprobs=self._logprobs(choice.entries),
                finish_reason=choice.finish,
                stop_reason=_or_unset(choice.stop_reason),
                token_ids=_ids(choice.token_ids, self._plan),
                prompt_token_ids=self._prompt_ids_once(choice.index),
                prompt_logprobs=_prompt_scores(
                    scores(choice.index // self._plan.n), self._tokenizer
                ),
            )
            for choice in choices
        ]
        return self._body(made, usage)

    def _body(self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None) -> bytes:
        head = self._head
        return _encode(
            Completion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=choices,
                usage=usage,
            )
        )

    def _prompt_ids_once(self, choice: int) -> list[int] | UnsetType:
        if not self._plan.prompts or choice in self._told:
            return UNSET
        self._told.add(choice)
        return list(self._plan.prompts[choice // self._plan.n])

    def _logprobs(self, entries: Sequence[Entry]) -> CompletionLogprobs | None:
        return completion_logprobs(entries, self._tokenizer) if self._plan.has_logprobs else None


class NativeFormat:
    """`/v1/chat`: `{"token", "index", "finish_reason"}`, one choice, text only."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._num_events = 0

    def chunks(self, delta: Delta, usage: UsageBody | None) -> list[bytes]:
        """One event for text, for the end, or for both at once."""
        if not delta.text and delta.finish is None:
            return []
        event = NativeEvent(token=delta.text, index=self._num_events, finish_reason=delta.finish)
        self._num_events += 1
        return [_encode(event)]

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """As in chat; the parser refuses to ask for it."""
        return self._chat.usage_chunk(usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody, scores: Scores) -> bytes:
        """As in chat; for logs and tests, `/v1/chat` always streams."""
        return self._chat.whole(choices, usage, scores)


def chat_answer(
    head: AnswerHead, request: ChatRequest, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> Answer:
    """The answer of `/v1/chat/completions`; `made` is its engine request."""
    plan = chat_plan(request, made)
    return Answer(ChatFormat(head, tokenizer, plan), Accumulator(plan, tokenizer))


def native_answer(
    head: AnswerHead, request: ChatRequest, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> Answer:
    """The answer of `/v1/chat`."""
    plan = chat_plan(request, made)
    form = NativeFormat(ChatFormat(head, tokenizer, plan))
    return Answer(form, Accumulator(plan, tokenizer))


def completion_answer(
    head: AnswerHead,
    request: CompletionRequest,
    made: Sequence[EngineRequest],
    tokenizer: Tokenizer,
) -> Answer:
    """The answer of `/v1/completions`; `made` are its engine requests, one a prompt."""
    plan = completion_plan(request, made, tokenizer)
    return Answer(CompletionFormat(head, tokenizer, plan), Accumulator(plan, tokenizer))


def _or_unset(value: str | int | None) -> str | int | UnsetType:
    return UNSET if value is None else value


def _ids(ids: Sequence[int], plan: AnswerPlan) -> list[int] | UnsetType:
    return list(ids) if plan.has_ids else UNSET


def _prompt_scores(
    scored: Sequence[TokenLogprob | None] | None, tokenizer: Tokenizer
) -> PromptScores | UnsetType:
    return UNSET if scored is None else prompt_logprobs(scored, tokenizer)
