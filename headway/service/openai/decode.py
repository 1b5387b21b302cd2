"""Bytes to plain JSON values and to structs, with errors that name the field.

Nothing here repeats what the client sent, numbers aside: bodies hold prompts.
"""

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from headway.core.base.errors import InvalidRequest

T = TypeVar("T")

UTF8_BOM = b"\xef\xbb\xbf"
MAX_DIAGNOSED = 256 * 1024  # bytes; the second reading of a wrong body is about 20 times slower
_PATH = re.compile(r"^(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<types>[^`]*)`(?P<bound>[^,]*)(?:, got `(?P<got>[^`]*)`)?$")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def decode_object(body: bytes) -> dict[str, Any]:
    """The body's JSON object; raises InvalidRequest. Who read the body has bounded it."""
    body = body.removeprefix(UTF8_BOM)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _diagnose(body) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object, got {describe(value)}.")
    return value


def convert(value: object, to: type[T], prefix: str = "") -> T:
    """`value` as a struct; raises InvalidRequest that names the field under `prefix`."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        raise _explain(str(error), value, prefix) from None
    except RecursionError:
        raise _too_deep() from None


def describe(value: object) -> str:
    """What a value is, without repeating it; numbers are short enough to be shown."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"  # repr of a huge int is long, or refused
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list | tuple):
        return "a list"
    return "an object"


def _too_deep() -> InvalidRequest:
    return InvalidRequest("The body is nested too deeply to be read. Send a flatter one.")


def _explain(text: str, value: object, prefix: str) -> InvalidRequest:
    """A message for people from msgspec's, which has types and a path but no content."""
    found = _PATH.match(text)
    reason, path = (found["reason"], found["path"] or "") if found else (text, "")
    expected = _EXPECTED.match(reason)
    if expected is not None:
        path = _with_key(value, path, expected["got"])
    param = (prefix + path).lstrip(".") or None
    name = f"'{param}'" if param else "The body"
    if expected is None:
        missing = re.match(r"^Object missing required field `(\w+)`$", reason)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
            return InvalidRequest(f"'{param}' is missing.", param=param)
        return InvalidRequest(f"{name} is not valid.", param=param)
    kinds = [_WORDS.get(kind.strip(), kind.strip()) for kind in expected["types"].split("|")]
    kinds = [kind for kind in kinds if kind != "null"] or ["null"]
    wanted = " or ".join(kinds) + expected["bound"].rstrip()
    return InvalidRequest(f"{name} must be {wanted}{_got(value, path, expected)}.", param=param)


def _with_key(value: object, path: str, got: str | None) -> str:
    """The path with the key that msgspec leaves out, where it is plain which one is meant."""
    before, found, after = path.partition("[...]")
    if not found or after:
        return path
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", before):
        value = value[key] if key else value[int(index)]  # type: ignore[index]  # by path
    keys = [key for key, item in _items(value) if got is not None and _kind(item) == got]
    is_plain = len(keys) == 1 and re.fullmatch(r"\w{1,64}", keys[0], re.ASCII)
    return f"{before}.{keys[0]}" if is_plain else path


def _items(value: object) -> list[tuple[str, object]]:
    return list(value.items()) if isinstance(value, dict) else []


def _kind(value: object) -> str:
    """msgspec's word for what a value is."""
    kinds = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _got(value: object, path: str, expected: re.Match[str]) -> str:
    """', got X' where X is the offending value described, or only its type."""
    for step in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        key, index = step
        try:
            value = value[key] if key else value[int(index)]  # type: ignore[index]  # by path
        except (LookupError, TypeError):
            return ""
    if "[...]" in path:  # a dict's value under a key that msgspec does not name
        got = expected["got"]
        return f", got {_WORDS.get(got, got)}" if got else ""
    return f", got {describe(value)}"


def _diagnose(body: bytes) -> InvalidRequest:
    """Why a body is no JSON: a second, slower reading that can name field or position."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return InvalidRequest(
            f"The body is not UTF-8: the byte at position {error.start} is wrong. "
            "Send JSON in UTF-8."
        )
    if len(body) > MAX_DIAGNOSED:
        return InvalidRequest("The body is not valid JSON.")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return InvalidRequest(
            f"The body is not valid JSON: it cannot be read from character {error.pos} on."
        )
    except RecursionError:
        return _too_deep()
    except ValueError:
        return InvalidRequest("The body is not valid JSON: a number in it has too many digits.")
    return _first_fault(value) or InvalidRequest("The body is not valid JSON.")


def _first_fault(root: object) -> InvalidRequest | None:
    """The first NaN, infinity or lone surrogate, by the path of its field.

    Python's own reader lets these pass, JSON and UTF-8 do not.
    """
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        name = f"'{path}'" if path else "The body"
        if isinstance(value, float) and not math.isfinite(value):
            return InvalidRequest(
                f"{name} must be a finite number; NaN, Infinity and numbers beyond 1.8e308 "
                "are not.",
                param=path or None,
            )
        if isinstance(value, str) and not _is_encodable(value):
            return InvalidRequest(
                f"{name} holds half of a surrogate pair (\\ud800 ... \\udfff alone), "
                "which is no character.",
                param=path or None,
            )
        if isinstance(value, dict):
            if any(not _is_encodable(key) for key in value):
                return InvalidRequest(
                    f"{name} has a field whose name holds half of a surrogate pair.",
                    param=path or None,
                )
            stack += reversed([(_join(path, key), item) for key, item in value.items()])
        elif isinstance(value, list):
            stack += reversed([(f"{path}[{i}]", item) for i, item in enumerate(value)])
    return None


def _join(path: str, key: str) -> str:
    """A field's path; names that are not plain words are the client's text and not shown."""
    shown = key if re.fullmatch(r"\w{1,64}", key, re.ASCII) else "..."
    return f"{path}.{shown}" if path else shown


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
