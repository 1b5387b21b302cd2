"""Bytes to a checked request, or an error that names the field.

What a client sent is never repeated in an error, numbers and names of fields aside.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from headway.core.base.errors import InvalidRequest, Unsupported
from headway.core.tenancy.tenant import SloClass
from headway.service.openai import refused
from headway.service.openai.decode import convert, decode_object, describe
from headway.service.openai.limits import ApiLimits
from headway.service.openai.messages import check_messages
from headway.service.openai.parse_extras import allowed_ids, shared_extras, template_extras
from headway.service.openai.refused import refuse
from headway.service.openai.schema import (
    SMALLEST_TOP_P,
    ChatBody,
    ChatRequest,
    CompletionBody,
    CompletionRequest,
    SamplingChoice,
    SharedFields,
)

Body = TypeVar("Body", bound=SharedFields)
MAX_UNKNOWN_FIELDS = 16  # names reported; more are ignored without being counted


def parse_chat(body: bytes, limits: ApiLimits) -> ChatRequest:
    """The request of `/v1/chat/completions`; raises a ClientError."""
    return _chat(decode_object(body), limits)


def parse_native(body: bytes, query: Mapping[str, str], limits: ApiLimits) -> ChatRequest:
    """The request of `/v1/chat`: a chat that always streams, its model also as `?model=`.

    The native events carry one choice and no more than text, so `n` above 1, log-probabilities
    and usage in the stream are refused.
    """
    fields = decode_object(body)
    named = query.get("model")
    if named is not None:
        if fields.get("model") not in (None, named):
            raise InvalidRequest(
                "'model' differs between the query and the body; send one.", param="model"
            )
        fields["model"] = named
    if fields.get("stream") is False:
        raise Unsupported(
            "'stream' cannot be false here: /v1/chat always streams. "
            "Use /v1/chat/completions for a whole answer.",
            param="stream",
        )
    if fields.get("stream") is None:
        fields["stream"] = True
    request = _chat(fields, limits)
    _refuse_on_native("n", request.n > 1)
    _refuse_on_native("logprobs", request.sampling.num_logprobs is not None)
    _refuse_on_native("stream_options", request.include_usage or request.continuous_usage)
    _refuse_on_native("return_token_ids", request.return_token_ids)
    return request


def parse_completion(body: bytes, limits: ApiLimits) -> CompletionRequest:
    """The request of `/v1/completions`; raises a ClientError."""
    raw = decode_object(body)
    fields, unknown = _fields(raw, CompletionBody, refused.COMPLETION)
    prompts = _prompts(fields.prompt, limits)
    n = _choices(fields, limits)
    if len(prompts) * n > limits.max_total_choices:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n={n} make {len(prompts) * n} answers; "
            f"at most {limits.max_total_choices} are made for one request.",
            param="n",
        )
    echo = bool(fields.echo)
    if fields.max_tokens == 0 and not echo:
        raise _zero_tokens("max_tokens", " (0 is only for 'echo', to score the prompt)")
    return CompletionRequest(
        prompts=prompts,
        prompt_is_list=isinstance(fields.prompt, list) and not _is_ids(fields.prompt),
        echo=echo,
        sampling=_sampling(fields, raw, limits, fields.max_tokens, fields.logprobs),
        n=n,
        unknown_fields=unknown,
        **_shared(fields, limits),
    )


def _chat(raw: dict[str, Any], limits: ApiLimits) -> ChatRequest:
    fields, unknown = _fields(raw, ChatBody, refused.CHAT)
    messages = check_messages(fields.messages, limits)
    name, max_tokens = _chat_max_tokens(fields)
    if max_tokens == 0:
        raise _zero_tokens(name, "")
    return ChatRequest(
        messages=messages,
        max_tokens_field=name,
        sampling=_sampling(fields, raw, limits, max_tokens, _chat_logprobs(fields)),
        n=_choices(fields, limits),
        unknown_fields=unknown,
        **_shared(fields, limits),
        **template_extras(fields),
    )


def _fields(
    raw: dict[str, Any], to: type[Body], table: Mapping[str, refused.Refusal]
) -> tuple[Body, tuple[str, ...]]:
    """The known fields as a struct, and the names of the others, shortened."""
    refuse(raw, table)
    known = set(to.__struct_fields__)
    # logit_bias has a check of its own that can name the key.
    body = convert({k: v for k, v in raw.items() if k in known and k != "logit_bias"}, to)
    unknown = [name[:64] for name in raw if name not in known and name not in table]
    return body, tuple(unknown[:MAX_UNKNOWN_FIELDS])


def _shared(fields: SharedFields, limits: ApiLimits) -> dict[str, Any]:
    for name in ("model", "user", "cache_salt"):
        text = getattr(fields, name)
        if text is not None and len(text) > limits.max_name_chars:
            raise InvalidRequest(
                f"'{name}' has {len(text)} characters; at most {limits.max_name_chars} "
                "are accepted.",
                param=name,
            )
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed together with 'stream': true.",
            param="stream_options",
        )
    return {
        "model": fields.model,
        "stream": bool(fields.stream),
        "include_usage": options is not None and bool(options.include_usage),
        "user": fields.user,
        "cache_salt": (fields.cache_salt or "").encode(),
        "asked_class": SloClass.INTERNAL if fields.service_tier == "flex" else None,
        "priority": fields.priority or 0,
        **shared_extras(fields, limits),
    }


def _choices(fields: SharedFields, limits: ApiLimits) -> int:
    n = 1 if fields.n is None else fields.n
    if n > limits.max_choices:
        raise InvalidRequest(f"'n' must be at most {limits.max_choices}, got {n}.", param="n")
    if fields.best_of is not None and fields.best_of != n:
        raise Unsupported(
            f"'best_of' must equal 'n' ({n}) or be left out, got {describe(fields.best_of)}.",
            param="best_of",
        )
    return n


def _chat_max_tokens(fields: ChatBody) -> tuple[str, int | None]:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"'max_tokens' ({old}) and 'max_completion_tokens' ({new}) differ; send one.",
            param="max_tokens",
        )
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def _chat_logprobs(fields: ChatBody) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest(
            "'top_logprobs' is only allowed together with 'logprobs': true.", param="top_logprobs"
        )
    return None


def _sampling(
    fields: SharedFields,
    raw: dict[str, Any],
    limits: ApiLimits,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> SamplingChoice:
    if fields.min_tokens and max_tokens is not None and fields.min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' ({fields.min_tokens}) is over 'max_tokens' ({max_tokens}).",
            param="min_tokens",
        )
    given: dict[str, Any] = {
        "temperature": fields.temperature,
        "top_p": None if fields.top_p is None else max(fields.top_p, SMALLEST_TOP_P),
        "top_k": None if fields.top_k is None else max(fields.top_k, 0),
        "min_p": fields.min_p,
        "frequency_penalty": fields.frequency_penalty,
        "presence_penalty": fields.presence_penalty,
        "repetition_penalty": fields.repetition_penalty,
        "include_stop": fields.include_stop_str_in_output,
        "min_tokens": fields.min_tokens,
        "ignore_eos": fields.ignore_eos,
        "skip_special_tokens": fields.skip_special_tokens,
    }
    return SamplingChoice(
        max_tokens=max_tokens,
        seed=_seed(fields.seed),
        logit_bias=_logit_bias(raw.get("logit_bias"), limits),
        stop=_stop(fields.stop, limits),
        stop_token_ids=_stop_ids(fields.stop_token_ids, limits),
        num_logprobs=num_logprobs,
        allowed_token_ids=allowed_ids(fields.allowed_token_ids),
        **{name: value for name, value in given.items() if value is not None},
    )


def _seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if not -(2**63) <= seed < 2**64:
        raise InvalidRequest(
            f"'seed' must be in -2**63 ... 2**64 - 1, got {describe(seed)}.", param="seed"
        )
    return seed % 2**64


def _stop(stop: str | list[str] | None, limits: ApiLimits) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > limits.max_stop_strings:
        raise InvalidRequest(
            f"'stop' has {len(strings)} strings; at most {limits.max_stop_strings} are accepted.",
            param="stop",
        )
    for i, text in enumerate(strings):
        name = "stop" if isinstance(stop, str) else f"stop[{i}]"
        if not text:
            raise InvalidRequest(f"'{name}' is empty; leave it out.", param=name)
        if len(text) > limits.max_stop_chars:
            raise InvalidRequest(
                f"'{name}' has {len(text)} characters; at most {limits.max_stop_chars} "
                "are accepted.",
                param=name,
            )
    return tuple(dict.fromkeys(strings))


def _stop_ids(ids: list[int] | None, limits: ApiLimits) -> tuple[int, ...]:
    ids = ids or []
    if len(ids) > limits.max_stop_token_ids:
        raise InvalidRequest(
            f"'stop_token_ids' has {len(ids)} ids; at most {limits.max_stop_token_ids} "
            "are accepted.",
            param="stop_token_ids",
        )
    return tuple(dict.fromkeys(ids))


def _logit_bias(value: object, limits: ApiLimits) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"'logit_bias' must be an object of token ids and numbers, got {describe(value)}.",
            param="logit_bias",
        )
    if len(value) > limits.max_logit_bias:
        raise InvalidRequest(
            f"'logit_bias' has {len(value)} entries; at most {limits.max_logit_bias} are accepted.",
            param="logit_bias",
        )
    return tuple(sorted(_bias(key, bias) for key, bias in value.items()))


def _bias(key: str, bias: object) -> tuple[int, float]:
    shown = key if re.fullmatch(r"[\w.+-]{1,32}", key, re.ASCII) else "..."
    name = f"logit_bias.{shown}"
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key, re.ASCII):
        raise InvalidRequest(f"'{name}': the name must be a token id, 0 or more.", param=name)
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise InvalidRequest(
            f"'{name}' must be a number in -100 ... 100, got {describe(bias)}.", param=name
        )
    return int(key), float(bias)


def _is_ids(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _prompts(
    prompt: str | list[str | int | list[int]] | None, limits: ApiLimits
) -> tuple[str | tuple[int, ...], ...]:
    """Every form of `prompt` as a tuple of prompts, none of them empty."""
    if prompt is None:
        raise InvalidRequest("'prompt' is missing.", param="prompt")
    if isinstance(prompt, str):
        return (_prompt(prompt, "prompt"),)
    if _is_ids(prompt):
        return (_prompt(prompt, "prompt"),)
    if not prompt:
        raise InvalidRequest("'prompt' is empty; send at least one token.", param="prompt")
    if len(prompt) > limits.max_prompts:
        raise InvalidRequest(
            f"'prompt' has {len(prompt)} prompts; at most {limits.max_prompts} are accepted.",
            param="prompt",
        )
    kind = type(prompt[0])
    for i, entry in enumerate(prompt):
        if type(entry) is not kind:
            raise InvalidRequest(
                f"'prompt[{i}]' is {describe(entry)}, while 'prompt[0]' is {describe(prompt[0])}; "
                "all prompts must be texts, or all lists of token ids.",
                param=f"prompt[{i}]",
            )
    return tuple(_prompt(entry, f"prompt[{i}]") for i, entry in enumerate(prompt))


def _prompt(entry: str | list[Any] | int, name: str) -> str | tuple[int, ...]:
    if not entry and not isinstance(entry, int):
        raise InvalidRequest(f"'{name}' is empty; send at least one token.", param=name)
    if isinstance(entry, str):
        return entry
    assert isinstance(entry, list)
    for i, token_id in enumerate(entry):
        if not isinstance(token_id, int):
            raise InvalidRequest(
                f"'{name}[{i}]' must be a token id like 'prompt[0]', got {describe(token_id)}.",
                param=f"{name}[{i}]",
            )
        if token_id < 0:
            raise InvalidRequest(
                f"'{name}[{i}]' must be a token id, 0 or more, got {describe(token_id)}.",
                param=f"{name}[{i}]",
            )
    return tuple(entry)


def _zero_tokens(name: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"'{name}' must be at least 1, got 0{hint}.", param=name)


def _refuse_on_native(name: str, is_asked: bool) -> None:
    if is_asked:
        raise Unsupported(
            f"'{name}' cannot be used on /v1/chat, whose events carry one text only. "
            "Use /v1/chat/completions.",
            param=name,
        )
