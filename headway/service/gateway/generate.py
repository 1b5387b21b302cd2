"""The three endpoints that generate: how each reads its body and writes its answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headway.core.messages.path import EngineRequest
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.responses import (
    Answer,
    AnswerHead,
    chat_answer,
    completion_answer,
    native_answer,
)
from headway.service.openai.schema import ChatRequest, CompletionRequest

Request = ChatRequest | CompletionRequest
Query = Mapping[str, str]


class Generator(NamedTuple):
    """One endpoint; `name` is its label in metrics and logs."""

    name: str
    id_prefix: str
    parse: Callable[[bytes, Query, ApiLimits], Request]
    answer: Callable[[AnswerHead, Request, Sequence[EngineRequest], Tokenizer], Answer]
    is_named_by_query: bool = False  # `?model=` names the model too


def _chat(
    head: AnswerHead, request: Request, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> Answer:
    assert isinstance(request, ChatRequest)
    return chat_answer(head, request, made, tokenizer)


def _native(
    head: AnswerHead, request: Request, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> Answer:
    assert isinstance(request, ChatRequest)
    return native_answer(head, request, made, tokenizer)


def _completion(
    head: AnswerHead, request: Request, made: Sequence[EngineRequest], tokenizer: Tokenizer
) -> Answer:
    assert isinstance(request, CompletionRequest)
    return completion_answer(head, request, made, tokenizer)


GENERATORS: Mapping[str, Generator] = {
    "/v1/chat/completions": Generator(
        "chat_completions", "chatcmpl", lambda body, _, limits: parse_chat(body, limits), _chat
    ),
    "/v1/completions": Generator(
        "completions", "cmpl", lambda body, _, limits: parse_completion(body, limits), _completion
    ),
    "/v1/chat": Generator("chat", "chat", parse_native, _native, is_named_by_query=True),
}
