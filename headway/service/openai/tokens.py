"""Bodies of `/tokenize` and `/detokenize`, in the form that vLLM gave them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headway.core.base.errors import InvalidRequest
from headway.core.text.tokenizer import Tokenizer
from headway.service.openai.answer_schema import Detokenized, Tokenized
from headway.service.openai.decode import convert, decode_object
from headway.service.openai.limits import ApiLimits
from headway.service.openai.logprobs import prompt_text, token_text
from headway.service.openai.messages import check_messages
from headway.service.openai.parse_extras import template_extras
from headway.service.openai.resolve import ModelFacts
from headway.service.openai.schema import ChatBody, ChatRequest, SamplingChoice, TokenId


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/tokenize`: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: (
        Annotated[bool, Meta(description="With 'prompt': the model's start token; default true.")]
        | None
    ) = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[TokenId] | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be encoded, checked."""

    model: str | None
    source: str | ChatRequest
    add_special: bool
    wants_texts: bool


def parse_tokenize(body: bytes, limits: ApiLimits) -> TokenizeRequest:
    """The request of `/tokenize`; raises InvalidRequest."""
    fields = convert(decode_object(body), TokenizeBody)
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("Send either 'prompt' or 'messages'.", param="prompt")
    return TokenizeRequest(
        model=fields.model,
        source=_chat(fields, limits) if fields.prompt is None else fields.prompt,
        add_special=fields.add_special_tokens is not False,
        wants_texts=bool(fields.return_token_strs),
    )


def parse_detokenize(body: bytes) -> DetokenizeBody:
    """The request of `/detokenize`; raises InvalidRequest."""
    fields = convert(decode_object(body), DetokenizeBody)
    if fields.tokens is None:
        raise InvalidRequest("'tokens' is missing.", param="tokens")
    return fields


def tokenized(
    ids: list[int], request: TokenizeRequest, facts: ModelFacts, tokenizer: Tokenizer
) -> bytes:
    """The answer of `/tokenize`; a token that is not whole characters as `bytes:\\xf0`."""
    texts = [token_text(tokenizer.token_bytes(each)) for each in ids]
    return msgspec.json.encode(
        Tokenized(
            count=len(ids),
            max_model_len=facts.max_model_len,
            tokens=ids,
            token_strs=texts if request.wants_texts else None,
        )
    )


def detokenized(body: DetokenizeBody, facts: ModelFacts, tokenizer: Tokenizer) -> bytes:
    """The answer of `/detokenize`; raises InvalidRequest for an id that the model lacks."""
    ids, top = body.tokens or [], facts.vocab_size - 1
    for i, token_id in enumerate(ids):
        if token_id > top:
            raise InvalidRequest(
                f"'tokens[{i}]' must be a token id of this model, 0 ... {top}, got {token_id}.",
                param=f"tokens[{i}]",
            )
    return msgspec.json.encode(Detokenized(prompt=prompt_text(ids, tokenizer)))


def _chat(fields: TokenizeBody, limits: ApiLimits) -> ChatRequest:
    chat = ChatBody(
        messages=fields.messages,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
    )
    return ChatRequest(
        messages=check_messages(chat.messages, limits),
        sampling=SamplingChoice(),
        **template_extras(chat),
    )
