"""Chat messages as a template may take them: checked, and with every content a text."""

from collections.abc import Mapping, Sequence

from headway.core.base.errors import InvalidRequest, UnsupportedModality
from headway.service.loaders.tokenizer_files import check_text

ROLES = ("system", "developer", "user", "assistant", "tool")
PART_TYPES = ("text", "refusal")  # each has its text in a field of the same name
MAX_DEPTH = 32  # of what a message holds, e.g. arguments of tool calls

Message = dict[str, object]


def normalise(messages: Sequence[Mapping[str, object]], *, knows_developer: bool) -> list[Message]:
    """Copies of the messages whose content is a string; raises InvalidRequest otherwise.

    Content that is null, missing or an empty list becomes the empty string; text parts are
    joined in order with a newline. `developer` becomes `system` unless the template knows it.
    """
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", param="messages")
    return [
        _normalise_one(message, f"messages[{index}]", knows_developer=knows_developer)
        for index, message in enumerate(messages)
    ]


def _normalise_one(message: object, param: str, *, knows_developer: bool) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{param} must be an object with role and content", param=param)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{param}.role must be one of {', '.join(ROLES)}, got {_short(role)}",
            param=f"{param}.role",
        )
    _check_strings(dict(message), param, MAX_DEPTH)
    copy = {key: value for key, value in message.items() if key != "content"}
    if role == "developer" and not knows_developer:
        copy["role"] = "system"
    copy["content"] = _text_of(message.get("content"), f"{param}.content")
    return copy


def _text_of(content: object, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(
            f"{param} must be a string or an array of parts, got {_short(content)}", param=param
        )
    return "\n".join(_text_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _text_part(part: object, param: str) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequest(
            f'{param} must be an object with a type, such as {{"type": "text", "text": "..."}}',
            param=param,
        )
    kind = part["type"]
    if kind not in PART_TYPES:
        raise UnsupportedModality(
            f"{param} is of type {_short(kind)}; this model takes text parts only", param=param
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{param}.{kind} must be a string, got {_short(text)}", param=f"{param}.{kind}"
        )
    return text


def _check_strings(value: object, param: str, depth: int) -> None:
    """Refuse text that UTF-8 cannot carry, wherever it stands, and endless nesting."""
    if isinstance(value, str):
        check_text(value, param)
        return
    if not isinstance(value, Mapping | list | tuple):
        return
    if depth == 0:
        raise InvalidRequest(f"{param} is nested more than {MAX_DEPTH} deep", param=param)
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_text(str(key), param)
            _check_strings(item, f"{param}.{key}", depth - 1)
    else:
        for index, item in enumerate(value):
            _check_strings(item, f"{param}[{index}]", depth - 1)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
