"""Checks of the fields beyond OpenAI's own: what the prompt becomes, and what more is told."""

from typing import Any

from headway.core.base.errors import InvalidRequest
from headway.service.openai.limits import ApiLimits
from headway.service.openai.schema import ChatBody, SharedFields


def shared_extras(fields: SharedFields, limits: ApiLimits) -> dict[str, Any]:
    """Fields of a ParsedRequest; raises InvalidRequest."""
    if fields.truncate_prompt_tokens == 0:
        raise InvalidRequest(
            "'truncate_prompt_tokens' must be at least 1, or -1 for what fits; got 0.",
            param="truncate_prompt_tokens",
        )
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest(
            "'prompt_logprobs' is not sent in a stream; leave out 'stream', or ask for it with "
            "'max_tokens': 1 in a request of its own.",
            param="prompt_logprobs",
        )
    options = fields.stream_options
    return {
        "continuous_usage": options is not None and bool(options.continuous_usage_stats),
        "truncate_to": fields.truncate_prompt_tokens,
        "return_token_ids": bool(fields.return_token_ids),
        "prompt_logprobs": fields.prompt_logprobs,
        "bad_words": _bad_words(fields.bad_words, limits),
    }


def allowed_ids(ids: list[int] | None) -> tuple[int, ...]:
    """Each id once; an empty list would leave nothing to draw."""
    if ids is not None and not ids:
        raise InvalidRequest(
            "'allowed_token_ids' is empty, so that no token could be drawn; leave it out.",
            param="allowed_token_ids",
        )
    return tuple(dict.fromkeys(ids or ()))


def template_extras(fields: ChatBody) -> dict[str, Any]:
    """What a chat asks of its template, as fields of a ChatRequest."""
    continues = bool(fields.continue_final_message)
    opens = fields.add_generation_prompt
    if continues and opens:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true: the last "
            "turn is either continued, or closed and a new one begun.",
            param="continue_final_message",
        )
    last = fields.messages[-1] if fields.messages else {}
    if continues and not last.get("content"):
        raise InvalidRequest(
            "'continue_final_message' needs text in the last message.",
            param="continue_final_message",
        )
    return {
        "add_generation_prompt": not continues if opens is None else opens,
        "continue_final": continues,
        "template_arguments": fields.chat_template_kwargs or {},
        "echo": bool(fields.echo),
    }


def _bad_words(words: list[str] | None, limits: ApiLimits) -> tuple[str, ...]:
    words = words or []
    if len(words) > limits.max_bad_words:
        raise InvalidRequest(
            f"'bad_words' has {len(words)} entries; at most {limits.max_bad_words} are accepted.",
            param="bad_words",
        )
    for i, word in enumerate(words):
        name = f"bad_words[{i}]"
        if not word:
            raise InvalidRequest(f"'{name}' is empty; leave it out.", param=name)
        if len(word) > limits.max_stop_chars:
            raise InvalidRequest(
                f"'{name}' has {len(word)} characters; at most {limits.max_stop_chars} "
                "are accepted.",
                param=name,
            )
    return tuple(dict.fromkeys(words))
