from typing import Any

import pytest

from headway.core.base.errors import InvalidRequest
from headway.service.openai.limits import ApiLimits
from headway.service.openai.messages import check_messages

LIMITS = ApiLimits()
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def refused(*messages: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_messages(list(messages), LIMITS)
    return caught.value


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_chat_template_02_an_assistants_tool_call_may_have_no_content(
    content: dict[str, Any],
) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "user", "content": "go on"},
    ]
    assert check_messages(messages, LIMITS) == tuple(messages)


def test_chat_template_02_text_parts_are_accepted() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]
    kept = check_messages([{"role": "user", "content": parts}], LIMITS)
    assert kept[0]["content"] == parts


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "x"}, "role"),
        ({"role": ["user"], "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": None, "content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": True}, "content"),
        ({"role": "user", "content": {}}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": {}, "text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": "x", "name": 5}, "name"),
        ({"role": "assistant", "tool_calls": [5]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_chat_template_02_a_wrong_message_is_refused_by_its_index(
    message: dict[str, Any], param: str
) -> None:
    error = refused({"role": "user", "content": "Hi"}, message)
    assert error.param == f"messages[1].{param}"


def test_fields_that_templates_do_not_know_are_left_out() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "audio": None,
        "annotations": [],
    }
    assert check_messages([message], LIMITS) == ({"role": "assistant", "content": "x"},)


def test_deep_tool_calls_are_refused_before_a_template_walks_them() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    call = {"function": {"name": "f", "arguments": deep}}
    error = refused({"role": "assistant", "tool_calls": [call]})
    assert error.param == "messages[0].tool_calls"
