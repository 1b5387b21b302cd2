"""What of a file does not fit the struct that it is read as: where it stands, in words for people.

msgspec says so of the first misfit, but not which key of a mapping it is under, nor what there is
to choose from.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import inspect

Place = tuple[str | int, ...]  # ("models", 0, "load")
ANY_KEY = "..."
MAX_SHOWN = 80  # characters of a value that a message repeats
SECRET = frozenset({"keys", "headers", "redis_url", "launch"})  # what stands there is not shown
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
EXPECTED = re.compile(r"Expected `([^`]*)`")
FIELD = re.compile(r"Object (contains unknown|missing required) field `([^`]*)`")
WORDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "keys and values",
}


def misfit(raw: object, kind: Any, error: msgspec.ValidationError) -> tuple[str, Place]:
    """The reason and the place of the error that `raw` has as a `kind`."""
    reason, steps = _told(error)
    while ANY_KEY in steps:
        index = steps.index(ANY_KEY)
        key = _offender(raw, kind, tuple(steps[:index]))
        if key is None:  # the place ends here
            return _in_words(reason, None, None, is_shown=False), tuple(steps[:index])
        steps[index] = key
    place = tuple(steps)
    field = FIELD.match(reason)
    if field is None:
        is_shown = not any(step in SECRET for step in place)
        return _in_words(reason, _at(raw, place), _type_at(kind, place), is_shown=is_shown), place
    name = field[2]
    if field[1].startswith("missing"):
        return "is missing", (*place, name)
    known = _fields(_type_at(kind, place))
    return f"is not a setting{_like(name, known)}", (*place, name)


def _told(error: msgspec.ValidationError) -> tuple[str, list[str | int]]:
    """msgspec's reason, and its path as steps."""
    text = str(error)
    reason, _, path = text.rpartition(" - at `")
    if not reason:
        reason, path = text, ""
    steps: list[str | int] = []
    for name, index in STEP.findall(path.rstrip("`").removeprefix("$")):
        steps.append(int(index) if index.isdigit() else name or ANY_KEY)
    return reason, steps


def _offender(raw: object, kind: Any, place: Place) -> str | None:
    """The key of the mapping there under which the misfit is; None if that cannot be told."""
    there = _at(raw, place)
    for key in there if isinstance(there, Mapping) else ():
        try:
            msgspec.convert(_with(raw, place, {key: there[key]}), kind)
        except msgspec.ValidationError as error:
            _, steps = _told(error)
            if steps[: len(place) + 1] == [*place, ANY_KEY]:
                return str(key)
    return None


def _with(raw: Any, place: Place, value: object) -> Any:
    """The same content with another value at that place."""
    if not place:
        return value
    copy = raw.copy()
    copy[place[0]] = _with(raw[place[0]], place[1:], value)
    return copy


def _at(raw: Any, place: Place) -> Any:
    for step in place:
        try:
            raw = raw[step]
        except (LookupError, TypeError):
            return None
    return raw


def _type_at(kind: Any, place: Place) -> inspect.Type | None:
    """What is wanted there; None where that is not known."""
    found: inspect.Type | None = inspect.type_info(kind)
    for step in place:
        found = _below(found, step)
    return found


def _below(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    if isinstance(kind, inspect.UnionType):
        found = (_below(each, step) for each in kind.types)
        return next((each for each in found if each is not None), None)
    if isinstance(kind, inspect.StructType):
        return next((each.type for each in kind.fields if each.encode_name == step), None)
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    is_list = isinstance(kind, inspect.ListType | inspect.VarTupleType)
    return kind.item_type if is_list else None  # type: ignore[union-attr]  # one of the two


def _fields(kind: inspect.Type | None) -> list[str]:
    if isinstance(kind, inspect.UnionType):
        return [name for each in kind.types for name in _fields(each)]
    return (
        [each.encode_name for each in kind.fields] if isinstance(kind, inspect.StructType) else []
    )


def _choices(kind: inspect.Type | None) -> list[str]:
    if isinstance(kind, inspect.UnionType):
        return [word for each in kind.types for word in _choices(each)]
    if isinstance(kind, inspect.EnumType):
        return [str(each.value) for each in kind.cls]
    return [str(each) for each in kind.values] if isinstance(kind, inspect.LiteralType) else []


def _in_words(reason: str, value: object, kind: inspect.Type | None, *, is_shown: bool) -> str:
    """`must be ...; got ...`"""
    got = f"; got {_shown(value)}" if is_shown else ""
    choices = _choices(kind)
    if choices and not isinstance(value, list | dict):
        return f"must be one of {', '.join(choices)}{got}"
    expected = EXPECTED.match(reason)
    if expected is not None:
        kinds = expected[1].split(" | ")
        wanted = " or ".join(WORDS.get(each, each) for each in kinds if each != "null")
        rest = ", or left out" if "null" in kinds else ""
        return f"must be {wanted}{rest}{got}"
    if reason.startswith("Invalid decimal"):
        return f"must be a number{got}"
    return reason[:1].lower() + reason[1:]


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _like(name: str, known: Iterable[str]) -> str:
    """The rest of a message about a name that is not known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(names)}" if names else ""
