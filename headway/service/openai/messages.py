"""The shape of a chat's messages; what they become as text is the chat template's matter."""

from typing import Any

from headway.core.base.errors import InvalidRequest, UnsupportedModality
from headway.service.loaders.chat_messages import PART_TYPES, ROLES
from headway.service.openai.decode import convert, describe
from headway.service.openai.limits import ApiLimits
from headway.service.openai.schema import Message


def check_messages(
    messages: list[dict[str, Any]] | None, limits: ApiLimits
) -> tuple[dict[str, Any], ...]:
    """Plain messages with known fields only; raises InvalidRequest with the message's index."""
    if messages is None:
        raise InvalidRequest("'messages' is missing.", param="messages")
    if not messages:
        raise InvalidRequest("'messages' is empty; send at least one message.", param="messages")
    if len(messages) > limits.max_messages:
        raise InvalidRequest(
            f"'messages' has {len(messages)} entries; at most {limits.max_messages} are accepted.",
            param="messages",
        )
    return tuple(_check(m, f"messages[{i}]", limits) for i, m in enumerate(messages))


def _check(message: dict[str, Any], name: str, limits: ApiLimits) -> dict[str, Any]:
    role = message.get("role")
    if role is None:
        raise InvalidRequest(f"'{name}.role' is missing.", param=f"{name}.role")
    if role not in ROLES:
        raise InvalidRequest(
            f"'{name}.role' must be one of {', '.join(ROLES)}.", param=f"{name}.role"
        )
    if isinstance(parts := message.get("content"), list):
        _check_parts(parts, f"{name}.content")
    if message.get("function_call") is not None:
        raise InvalidRequest(
            f"'{name}.function_call' is the old form; send 'tool_calls'.",
            param=f"{name}.function_call",
        )
    kept = {key: message[key] for key in Message.__struct_fields__ if key in message}
    _check_nesting(kept.get("tool_calls"), f"{name}.tool_calls", limits.max_nesting)
    convert(kept, Message, name)
    return kept


def _check_parts(parts: list[Any], name: str) -> None:
    for i, part in enumerate(parts):
        if not isinstance(part, dict):
            raise InvalidRequest(
                f"'{name}[{i}]' must be an object with 'type' and 'text', got {describe(part)}.",
                param=f"{name}[{i}]",
            )
        kind = part.get("type")
        if kind not in PART_TYPES:
            raise UnsupportedModality(
                f"'{name}[{i}].type' must be \"text\": images, audio, video and files are not "
                "supported, and nothing is fetched from a URL.",
                param=f"{name}[{i}].type",
            )
        if not isinstance(part.get(kind), str):
            raise InvalidRequest(
                f"'{name}[{i}].{kind}' must be a string, got {describe(part.get(kind))}.",
                param=f"{name}[{i}].{kind}",
            )


def _check_nesting(value: object, name: str, levels: int) -> None:
    """Templates walk tool calls by recursion: bound how deep they may go."""
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if not isinstance(item, dict | list):
            continue
        if depth >= levels:
            raise InvalidRequest(
                f"'{name}' is nested too deeply; at most {levels} levels are accepted.", param=name
            )
        stack += [
            (child, depth + 1) for child in (item.values() if isinstance(item, dict) else item)
        ]
