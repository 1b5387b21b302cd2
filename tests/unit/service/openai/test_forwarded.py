"""What is checked of a request for another server, and what of it never goes on."""

import json
from typing import Any

import pytest

from headway.core.base.errors import InvalidRequest, Unsupported, UnsupportedModality
from headway.core.tenancy.tenant import SloClass
from headway.service.openai.forwarded import (
    ROUTING,
    ForwardedRequest,
    model_of,
    parse_forwarded_chat,
    parse_forwarded_completion,
    parse_forwarded_native,
)
from headway.service.openai.limits import ApiLimits

LIMITS = ApiLimits(max_messages=4, max_prompts=3, max_choices=8)


def chat(*content: Any, **fields: Any) -> ForwardedRequest:
    message = {"role": "user", "content": list(content) if content else "Hi"}
    return parse_forwarded_chat(json.dumps({"messages": [message], **fields}).encode(), LIMITS)


def test_what_is_not_known_here_goes_on_as_it_came() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = chat(tools=tools, response_format={"type": "json_object"}, new_thing={"a": [1.5]})
    assert found.fields["tools"] == tools
    assert found.fields["new_thing"] == {"a": [1.5]}
    assert found.unknown_fields == ()


def test_what_the_gateway_uses_is_read() -> None:
    found = chat(
        model="m",
        stream=True,
        stream_options={"include_usage": True},
        n=3,
        max_completion_tokens=9,
        user="u",
        service_tier="flex",
    )
    assert (found.model, found.stream, found.include_usage) == ("m", True, True)
    assert (found.n, found.max_tokens, found.max_tokens_field) == (3, 9, "max_completion_tokens")
    assert found.asked_class is SloClass.INTERNAL


@pytest.mark.parametrize(
    "name", ["api_base", "base_url", "extra_headers", "model_list", "priority"]
)
def test_security_headers_auth_01_a_field_that_says_where_to_send_or_whom_to_prefer_stays_here(
    name: str,
) -> None:
    found = chat(**{name: "http://evil"})
    assert name not in found.fields
    assert found.unknown_fields == (name,)
    assert name in ROUTING


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}] * 5}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0]"),
        ({"n": 0.5}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"model": "x" * 300}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream_options": 3, "stream": True}, "stream_options"),
    ],
)
def test_what_the_gateway_cannot_use_is_refused_by_its_field(
    fields: dict[str, Any], param: str
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    with pytest.raises(InvalidRequest) as raised:
        parse_forwarded_chat(json.dumps(body).encode(), LIMITS)
    assert raised.value.param == param


@pytest.mark.parametrize(
    "name", ["kv_transfer_params", "bootstrap_host", "prompt_embeds", "chat_template"]
)
def test_the_talk_of_servers_among_themselves_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        chat(**{name: {"a": 1}})


@pytest.mark.parametrize(
    ("part", "kind", "names_urls"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, "image", False),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}, "image", True),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "image", True),
        ({"type": "image_url", "image_url": {"url": "//evil/x", "detail": "low"}}, "image", True),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio", False),
        ({"type": "input_audio", "input_audio": {"data": "http://x"}}, "audio", True),
        ({"type": "video_url", "video_url": {"url": "ftp://x"}}, "video", True),
        ({"type": "file", "file": {"file_data": "data:x", "filename": "a.pdf"}}, "file", False),
    ],
)
def test_security_ssrf_01_content_beside_text_is_told_with_whether_it_names_a_url(
    part: dict[str, Any], kind: str, names_urls: bool
) -> None:
    found = chat({"type": "text", "text": "see http://in.a.text"}, part)
    assert found.modalities == {kind}
    assert found.names_urls is names_urls


def test_a_kind_of_content_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnsupportedModality):
        chat({"type": "hologram"})


def test_an_answer_in_sound_is_a_modality_too() -> None:
    assert chat(modalities=["text", "audio"]).modalities == {"audio"}


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "size"),
    [("abcd", 1, 4), (["ab", "c"], 2, 3), ([1, 2, 3], 1, 12), ([[1], [2, 3]], 2, 12)],
)
def test_prompts_are_counted_and_measured(prompt: Any, num_prompts: int, size: int) -> None:
    found = parse_forwarded_completion(json.dumps({"prompt": prompt}).encode(), LIMITS)
    assert found.num_prompts == num_prompts
    assert found.prompt_bytes() == size


@pytest.mark.parametrize("prompt", [None, "", [], 3, ["a"] * 4])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_forwarded_completion(json.dumps({"prompt": prompt}).encode(), LIMITS)
    assert raised.value.param == "prompt"


def test_the_native_endpoint_streams_one_choice_whatever_is_said() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    found = parse_forwarded_native(body, {"model": "m"}, LIMITS)
    assert (found.model, found.stream, found.fields["stream"]) == ("m", True, True)


@pytest.mark.parametrize("fields", [{"stream": False}, {"n": 2}, {"tools": [1]}])
def test_the_native_endpoint_refuses_what_its_events_cannot_carry(fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    with pytest.raises(Unsupported):
        parse_forwarded_native(json.dumps(body).encode(), {}, LIMITS)


@pytest.mark.parametrize(
    ("body", "query", "wanted"),
    [
        (b'{"model":"m","messages":[]}', {}, "m"),
        (b'{"model":"m"}', {"model": "n"}, "n"),
        (b'{"model":3}', {}, None),
        (b"{}", {}, None),
    ],
)
def test_the_model_is_found_without_reading_the_rest(
    body: bytes, query: dict[str, str], wanted: str | None
) -> None:
    assert model_of(body, query) == wanted


def test_a_body_that_is_no_object_is_refused_where_its_model_is_looked_for() -> None:
    with pytest.raises(InvalidRequest):
        model_of(b"[", {})


def test_texts_that_differ_in_a_role_differ() -> None:
    def texts(role: str) -> bytes:
        body = {"messages": [{"role": role, "content": "Hi"}]}
        return b"".join(parse_forwarded_chat(json.dumps(body).encode(), LIMITS).texts())

    assert texts("user") != texts("system")
