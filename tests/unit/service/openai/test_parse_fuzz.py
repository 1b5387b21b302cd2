"""Any JSON in any field is a request or a ClientError, with and without `stream` the same."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.base.errors import ClientError
from headway.service.openai import refused
from headway.service.openai.limits import ApiLimits
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.resolve import engine_requests
from headway.service.openai.schema import ChatBody, ChatRequest, CompletionBody, CompletionRequest
from tests.unit.service.openai.script import FACTS

LIMITS = ApiLimits()
CHAT_FIELDS = sorted({*ChatBody.__struct_fields__, *refused.CHAT} - {"stream", "stream_options"})
COMPLETION_FIELDS = sorted(
    {*CompletionBody.__struct_fields__, *refused.COMPLETION} - {"stream", "stream_options"}
)

numbers = st.one_of(
    st.integers(-3, 30),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63), 2**64, 10**400]),
    st.floats(),
)
scalars = st.none() | st.booleans() | numbers | st.text(st.characters(codec=None), max_size=6)
words = st.sampled_from(["role", "content", "type", "text", "user", "function", "1", "0", "-1"])
values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "wizard"])},
        optional={"content": values, "name": values, "tool_calls": values},
    ),
    max_size=3,
)
ids = st.lists(st.integers(-1, FACTS.vocab_size), max_size=5)
prompts = st.text(max_size=5) | ids | st.lists(ids, max_size=3) | values


def outcome(parsed: Any) -> tuple[object, ...]:
    """A parsed request without its `stream`, or what the client is told."""
    try:
        request: ChatRequest | CompletionRequest = parsed()
        num_prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
        made = engine_requests(request, [[1, 2]] * num_prompts, FACTS, "r", 1)
    except ClientError as error:
        told = error
    else:
        return request.sampling, request.n, made
    assert len(told.message.encode()) < 400
    return type(told), told.message, told.param, told.code


def both_ways(parse: Any, fields: dict[str, Any]) -> None:
    said = [
        outcome(lambda s=stream: parse(json.dumps({**fields, "stream": s}).encode(), LIMITS))
        for stream in (True, False)
    ]
    assert said[0] == said[1]


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(CHAT_FIELDS), values, max_size=3), messages)
def test_any_chat_body_gives_a_request_or_a_client_error(
    fields: dict[str, Any], sent: list[Any]
) -> None:
    both_ways(parse_chat, {"messages": sent, **fields})


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(COMPLETION_FIELDS), values, max_size=3), prompts)
def test_any_completion_body_gives_a_request_or_a_client_error(
    fields: dict[str, Any], prompt: Any
) -> None:
    both_ways(parse_completion, {"prompt": prompt, **fields})


@given(st.binary(max_size=60) | values.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_give_a_request_or_a_client_error(data: bytes) -> None:
    for parse in (
        lambda: parse_chat(data, LIMITS),
        lambda: parse_completion(data, LIMITS),
        lambda: parse_native(data, {"model": "m"}, LIMITS),
    ):
        assert outcome(parse)


@given(values, values)
def test_stream_and_its_options_are_checked_like_any_field(stream: Any, options: Any) -> None:
    fields = {"prompt": "x", "stream": stream, "stream_options": options}
    assert outcome(lambda: parse_completion(json.dumps(fields).encode(), LIMITS))
