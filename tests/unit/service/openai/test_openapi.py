import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headway.core.base.errors import (
    BadFrame,
    Conflict,
    CorruptBlock,
    HeadwayError,
    InvalidRequest,
    MethodNotAllowed,
    StartError,
)
from headway.service.openai.limits import ApiLimits
from headway.service.openai.openapi import ENDPOINTS, docs_page, openapi
from headway.service.openai.parse import parse_chat, parse_completion, parse_native
from headway.service.openai.schema import ChatBody, CompletionBody
from headway.service.openai.tokens import parse_detokenize, parse_tokenize
from tests.json_schema import Schemas

DOCS = Path(__file__).parents[4] / "docs"


def references(value: Any) -> set[str]:
    """Every $ref in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_endpoint_is_described_with_references_that_exist() -> None:
    document = json.loads(json.dumps(openapi("1.2.3")))
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == "1.2.3"
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS}
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names


def kinds_of(root: type[HeadwayError]) -> Iterator[type[HeadwayError]]:
    """It and all below it."""
    yield root
    for each in root.__subclasses__():
        yield from kinds_of(each)


def test_every_status_that_a_request_may_end_with_is_described() -> None:
    # A start, and what stays between processes, is answered to nobody; paths and /admin are others.
    elsewhere = (StartError, CorruptBlock, BadFrame, MethodNotAllowed, Conflict)
    wanted = {
        str(kind.http_status)
        for kind in kinds_of(HeadwayError)
        if not issubclass(kind, elsewhere) and kind.__module__.startswith("headway.")
    }
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/chat", "/tokenize"):
        assert wanted <= set(openapi("1")["paths"][path]["post"]["responses"]), path


def test_the_described_fields_are_those_that_are_parsed() -> None:
    schemas = openapi("1")["components"]["schemas"]
    for body in (ChatBody, CompletionBody):
        assert tuple(schemas[body.__name__]["properties"]) == body.__struct_fields__
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]


def accepts(name: str, value: object, limits: ApiLimits | None = None) -> bool:
    """Whether the description allows this body."""
    return Schemas(openapi("1", limits)).allow(name, value)


HI = [{"role": "user", "content": "Hi"}]
CHATS: list[dict[str, Any]] = [
    {},
    {"temperature": None, "stop": None, "logit_bias": None, "stream_options": None},
    {"stop": "x", "seed": -(2**63), "n": 16, "best_of": 16, "truncate_prompt_tokens": -1},
    {"stop": ["x"] * 16, "bad_words": ["y"], "allowed_token_ids": [1], "stop_token_ids": []},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"logprobs": True, "top_logprobs": 20},
    {"top_logprobs": 0},
    {"prompt_logprobs": 3, "stream": False},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"logit_bias": {"0": 1, "12": -100}},
    {"max_completion_tokens": 1},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}, *HI]},
    {"messages": [{"role": "developer", "function_call": None}]},
]
WRONG_CHATS: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": None},
    {"messages": HI * 2049},
    {"messages": [{"role": "robot", "content": "Hi"}]},
    {"messages": [{"content": "Hi"}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "refusal": "No"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
    {"stop": ""},
    {"stop": ["x"] * 17},
    {"stop": "x" * 1025},
    {"bad_words": [""]},
    {"allowed_token_ids": []},
    {"stop_token_ids": [0] * 129},
    {"truncate_prompt_tokens": 0},
    {"truncate_prompt_tokens": -2},
    {"seed": 2**64},
    {"n": 17},
    {"n": 0},
    {"best_of": 0},
    {"max_tokens": 0},
    {"max_tokens": 2, "max_completion_tokens": 3},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"01": 1}},
    {"logit_bias": {"1": 101}},
    {"user": "x" * 257},
    {"stream_options": {}},
    {"top_logprobs": 1},
    {"prompt_logprobs": 0, "stream": True},
    {"continue_final_message": True, "add_generation_prompt": True},
]


@pytest.mark.parametrize("fields", CHATS)
def test_what_is_taken_of_a_chat_is_described_as_allowed(fields: dict[str, Any]) -> None:
    parse_chat(json.dumps({"messages": HI, **fields}).encode(), ApiLimits())
    assert accepts("ChatBody", {"messages": HI, **fields})


@pytest.mark.parametrize("fields", WRONG_CHATS)
def test_what_is_refused_of_a_chat_is_described_as_not_allowed(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(json.dumps({"messages": HI, **fields}).encode(), ApiLimits())
    assert not accepts("ChatBody", {"messages": HI, **fields})


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"prompt": "Hi"}, True),
        ({"prompt": ["Hi", "Ho"]}, True),
        ({"prompt": [1, 2]}, True),
        ({"prompt": [[1], [2]]}, True),
        ({"prompt": "Hi", "echo": True, "max_tokens": 0}, True),
        ({"prompt": "Hi", "max_tokens": None, "logprobs": 20}, True),
        ({}, False),
        ({"prompt": None}, False),
        ({"prompt": ""}, False),
        ({"prompt": []}, False),
        ({"prompt": [[]]}, False),
        ({"prompt": ["Hi", 1]}, False),
        ({"prompt": [1, "Hi"]}, False),
        ({"prompt": [-1]}, False),
        ({"prompt": ["x"] * 129}, False),
        ({"prompt": "Hi", "max_tokens": 0}, False),
        ({"prompt": "Hi", "stream": True, "prompt_logprobs": 1}, False),
        ({"prompt": "Hi", "stream_options": {}}, False),
        ({"prompt": "Hi", "logprobs": 21}, False),
    ],
)
def test_a_completion_is_described_as_it_is_taken(fields: dict[str, Any], is_good: bool) -> None:
    with nullcontext() if is_good else pytest.raises(InvalidRequest):
        parse_completion(json.dumps(fields).encode(), ApiLimits())
    assert accepts("CompletionBody", fields) is is_good


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"prompt": "Hi"}, True),
        ({"prompt": ""}, True),
        ({"prompt": "Hi", "messages": None}, True),
        ({"messages": HI, "continue_final_message": True}, True),
        ({}, False),
        ({"prompt": None}, False),
        ({"prompt": "Hi", "messages": HI}, False),
        ({"messages": []}, False),
        ({"messages": HI, "add_generation_prompt": True, "continue_final_message": True}, False),
    ],
)
def test_what_is_to_be_encoded_is_described_as_it_is_taken(
    fields: dict[str, Any], is_good: bool
) -> None:
    with nullcontext() if is_good else pytest.raises(InvalidRequest):
        parse_tokenize(json.dumps(fields).encode(), ApiLimits())
    assert accepts("TokenizeBody", fields) is is_good


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"tokens": []}, True),
        ({"tokens": [0, 7]}, True),
        ({}, False),
        ({"tokens": None}, False),
        ({"tokens": [-1]}, False),
        ({"tokens": "7"}, False),
    ],
)
def test_what_is_to_be_decoded_is_described_as_it_is_taken(
    fields: dict[str, Any], is_good: bool
) -> None:
    with nullcontext() if is_good else pytest.raises(InvalidRequest):
        parse_detokenize(json.dumps(fields).encode())
    assert accepts("DetokenizeBody", fields) is is_good


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({}, True),
        ({"stream": True, "n": 1, "logprobs": False, "top_logprobs": 0}, True),
        ({"stream_options": {"include_usage": False}}, True),
        ({"stream": False}, False),
        ({"n": 2}, False),
        ({"logprobs": True}, False),
        ({"return_token_ids": True}, False),
        ({"prompt_logprobs": 1}, False),
        ({"stream_options": {"include_usage": True}}, False),
        ({"stream_options": {"continuous_usage_stats": True}}, False),
    ],
)
def test_short_events_are_described_as_they_are_given(
    fields: dict[str, Any], is_good: bool
) -> None:
    body = {"messages": HI, **fields}
    with nullcontext() if is_good else pytest.raises(InvalidRequest):
        parse_native(json.dumps(body).encode(), {}, ApiLimits())
    assert accepts("NativeChatBody", body) is is_good


def test_limits_of_the_operator_are_described() -> None:
    two = {"prompt": ["a", "b"]}
    assert accepts("CompletionBody", two)
    assert not accepts("CompletionBody", two, ApiLimits(max_prompts=1))


def test_the_page_names_every_endpoint_and_loads_nothing_from_elsewhere() -> None:
    page = docs_page("<1>", openapi("<1>")).decode()
    assert all(f"{e.method.upper()} {e.path}" in page for e in ENDPOINTS)
    assert "temperature" in page
    assert "&lt;1&gt;" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_every_limit_stands_in_the_docs_with_its_default() -> None:
    text = (DOCS / "limits.md").read_text()
    for name in ApiLimits.__struct_fields__:
        assert f"| `{name}` | {getattr(ApiLimits(), name)} |" in text


def test_every_field_stands_in_the_docs() -> None:
    text = (DOCS / "api.md").read_text()
    for name in {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}:
        assert f"`{name}`" in text
