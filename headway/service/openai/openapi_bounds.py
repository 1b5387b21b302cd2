"""What `parse` checks beyond the types of fields, as keywords of the API's description.

The structs leave these out, since the decoder's own messages about them would not be written
for people. What depends on the model (ids, names, lengths in tokens) stays out of the
description and is a 400 or a 404, which every operation says.
"""

import copy
from collections.abc import Mapping
from typing import Any

from headway.service.loaders.chat_messages import ROLES
from headway.service.openai.limits import ApiLimits

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0}
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1
BIAS_KEY = "^(0|[1-9][0-9]{0,9})$"
NATIVE = "NativeChatBody"


def add_bounds(schemas: dict[str, Schema], limits: ApiLimits) -> None:
    """Change the schemas in place, and add that of `/v1/chat`."""
    for name in ("ChatBody", "CompletionBody"):
        _bound_shared(schemas[name]["properties"], limits)
    _bound_messages(schemas, limits)
    _bound_chat(schemas["ChatBody"])
    _bound_completion(schemas["CompletionBody"], limits)
    _bound_tokenize(schemas, limits)
    schemas[NATIVE] = _native(schemas["ChatBody"])


def _bound_shared(fields: dict[str, Schema], limits: ApiLimits) -> None:
    text = {"type": "string", "minLength": 1, "maxLength": limits.max_stop_chars}
    for name in ("model", "user", "cache_salt"):
        _narrow(fields[name], "string", maxLength=limits.max_name_chars)
    _narrow(fields["n"], "integer", maximum=limits.max_choices)
    _narrow(fields["best_of"], "integer", minimum=1, maximum=limits.max_choices)
    _narrow(fields["seed"], "integer", minimum=LEAST_SEED, maximum=MOST_SEED)
    _narrow(fields["stop"], "string", **text)
    _narrow(fields["stop"], "array", maxItems=limits.max_stop_strings, items=text)
    _narrow(fields["bad_words"], "array", maxItems=limits.max_bad_words, items=text)
    _narrow(fields["stop_token_ids"], "array", maxItems=limits.max_stop_token_ids)
    _narrow(fields["allowed_token_ids"], "array", minItems=1)
    bias = {"propertyNames": {"pattern": BIAS_KEY}, "maxProperties": limits.max_logit_bias}
    _narrow(fields["logit_bias"], "object", **bias)
    whole = _branch(fields["truncate_prompt_tokens"], "integer")
    fields["truncate_prompt_tokens"]["anyOf"] = [
        {**whole, "minimum": 1},
        {"const": -1},
        NULL,
    ]


def _bound_messages(schemas: dict[str, Schema], limits: ApiLimits) -> None:
    messages = {
        "type": "array",
        "minItems": 1,
        "maxItems": limits.max_messages,
        "items": {"$ref": "#/components/schemas/Message"},
    }
    schemas["ChatBody"]["required"] = ["messages"]
    schemas["ChatBody"]["properties"]["messages"] = messages
    schemas["TokenizeBody"]["properties"]["messages"] = {"anyOf": [messages, NULL]}
    schemas["Message"]["properties"]["role"] = {"enum": list(ROLES)}
    schemas["Message"]["properties"]["function_call"] = NULL
    schemas["TextPart"]["oneOf"] = [
        {"properties": {"type": {"const": kind}, kind: {"type": "string"}}, "required": [kind]}
        for kind in ("text", "refusal")
    ]


def _bound_chat(body: Schema) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        _narrow(body["properties"][name], "integer", minimum=1)
    body["allOf"] = [
        _only_with("stream", "stream_options", NULL),
        _only_with("logprobs", "top_logprobs", {"enum": [0, None]}),
        _not_with("stream", "prompt_logprobs"),
        _not_both("continue_final_message", "add_generation_prompt"),
        _not_both_numbers("max_tokens", "max_completion_tokens"),
    ]


def _bound_completion(body: Schema, limits: ApiLimits) -> None:
    ids = {"type": "array", "items": TOKEN_ID, "minItems": 1}
    text = {"type": "string", "minLength": 1}
    several = {"type": "array", "minItems": 1, "maxItems": limits.max_prompts}
    body["required"] = ["prompt"]
    body["properties"]["prompt"] = {
        "description": "Text, list of texts, list of token ids, or list of such lists.",
        "anyOf": [text, {**several, "items": text}, ids, {**several, "items": ids}],
    }
    echoes = {"required": ["echo"], "properties": {"echo": {"const": True}}}
    at_least_one = {"anyOf": [{"type": "integer", "minimum": 1}, NULL]}
    body["allOf"] = [
        _only_with("stream", "stream_options", NULL),
        _not_with("stream", "prompt_logprobs"),
        {"anyOf": [echoes, {"properties": {"max_tokens": at_least_one}}]},
    ]


def _bound_tokenize(schemas: dict[str, Schema], limits: ApiLimits) -> None:
    body = schemas["TokenizeBody"]
    body["oneOf"] = [
        {
            "required": [name],
            "properties": {name: {"not": NULL}, other: NULL},
        }
        for name, other in (("prompt", "messages"), ("messages", "prompt"))
    ]
    body["allOf"] = [_not_both("continue_final_message", "add_generation_prompt")]
    ids = schemas["DetokenizeBody"]
    ids["required"] = ["tokens"]
    ids["properties"]["tokens"] = _branch(ids["properties"]["tokens"], "array")


def _native(chat: Schema) -> Schema:
    """The chat body less what short events cannot carry."""
    body = copy.deepcopy(chat)
    fields = body["properties"]
    fields["n"] = {"enum": [1, None]}
    fields["stream"] = {"enum": [True, None]}
    for name in ("logprobs", "return_token_ids"):
        fields[name] = {"enum": [False, None]}
    fields["top_logprobs"] = {"enum": [0, None]}
    fields["prompt_logprobs"] = NULL
    off = {"enum": [False, None]}
    fields["stream_options"] = {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "include_usage": off,
                    "continuous_usage_stats": off,
                    "include_obfuscation": {"type": ["boolean", "null"]},
                },
            },
            NULL,
        ]
    }
    body["title"] = NATIVE
    body["allOf"] = [
        _not_both("continue_final_message", "add_generation_prompt"),
        _not_both_numbers("max_tokens", "max_completion_tokens"),
    ]
    return body


def _branch(schema: Schema, kind: str) -> Schema:
    """The one of a field's types that is called so."""
    left, found = [schema], None
    while left and found is None:
        each = left.pop()
        left += each.get("anyOf", [])
        found = each if each.get("type") == kind else None
    assert found is not None, f"{kind} is not one of the types in {schema}"
    return found


def _narrow(schema: Schema, kind: str, **keywords: Any) -> None:
    _branch(schema, kind).update(keywords)


def _only_with(switch: str, name: str, neutral: Mapping[str, Any]) -> Schema:
    """`name` asks for something only where the switch is true."""
    on = {"required": [switch], "properties": {switch: {"const": True}}}
    return {"anyOf": [on, {"properties": {name: dict(neutral)}}]}


def _not_with(switch: str, name: str) -> Schema:
    """`name` is not there where the switch is true."""
    off = {"enum": [False, None]}
    return {"anyOf": [{"properties": {switch: off}}, {"properties": {name: NULL}}]}


def _not_both(one: str, other: str) -> Schema:
    off = {"enum": [False, None]}
    return {"anyOf": [{"properties": {one: off}}, {"properties": {other: off}}]}


def _not_both_numbers(one: str, other: str) -> Schema:
    """They may both stand there if they are equal, which no schema can say."""
    return {"anyOf": [{"properties": {one: NULL}}, {"properties": {other: NULL}}]}
