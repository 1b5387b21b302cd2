"""Messages are checked and their contents become texts before a template sees them."""

import pytest

from headway.core.base.errors import InvalidRequest, UnsupportedModality
from headway.service.loaders.chat_messages import normalise


def contents(*messages: dict[str, object]) -> list[object]:
    return [message["content"] for message in normalise(messages, knows_developer=False)]


def test_chat_template_02_null_missing_and_empty_contents_are_the_empty_text() -> None:
    assert contents(
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
    ) == ["", "", "", ""]


def test_chat_template_02_text_parts_are_joined_in_order() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]
    assert contents({"role": "user", "content": parts}) == ["Hi\n!"]
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert contents({"role": "assistant", "content": refusal}) == ["No."]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": True}, "messages[1].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content"),
        ({"role": "user", "content": b"x"}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0].text"),
        ("x", "messages[1]"),
    ],
)
def test_chat_template_02_a_bad_message_is_refused_with_its_index(
    message: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        contents({"role": "user", "content": "ok"}, message)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


def test_chat_template_02_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        normalise([], knows_developer=False)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video"])
def test_a_part_that_is_no_text_is_an_unsupported_modality(kind: str) -> None:
    with pytest.raises(UnsupportedModality, match="takes text parts only") as caught:
        contents({"role": "user", "content": [{"type": kind}]})
    assert caught.value.code == "unsupported_modality"
    assert caught.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "a\ud800b"}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "text", "text": "\udfff"}]},
            "messages[0].content[0].text",
        ),
        ({"role": "user", "content": "x", "name": "\ud800"}, "messages[0].name"),
        ({"role": "tool", "content": "x", "tool_call_id": "\ud800"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "\ud800": 1}, "messages[0]"),
    ],
)
def test_utf8_detok_04_a_lone_surrogate_is_refused_with_its_field(
    message: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        contents(message)
    assert caught.value.param == param
    assert caught.value.message.isascii()


def test_endless_nesting_is_refused() -> None:
    nested: object = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nested more than 32 deep"):
        contents({"role": "assistant", "content": "", "tool_calls": nested})


def test_developer_is_system_unless_the_template_knows_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert normalise(messages, knows_developer=False)[0]["role"] == "system"
    assert normalise(messages, knows_developer=True)[0]["role"] == "developer"
    assert messages == [{"role": "developer", "content": "x"}]
