"""As much of JSON Schema as the API's description uses; another keyword is an error."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
WORDS = {"title", "description", "default"}
SIZES = {"Items": list, "Length": str, "Properties": dict}


class Schemas:
    """The schemas of one document, which may name each other."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self._rules: Mapping[str, Callable[[Any, Mapping[str, Any], Any], bool]] = {
            "$ref": lambda name, _, value: self.allow(name.rpartition("/")[2], value),
            "anyOf": lambda each, _, value: any(self._fit(each, value)),
            "allOf": lambda each, _, value: all(self._fit(each, value)),
            "oneOf": lambda each, _, value: sum(self._fit(each, value)) == 1,
            "not": lambda rule, _, value: not self._fits(rule, value),
            "type": lambda kinds, _, value: any(
                KINDS[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds)
            ),
            "enum": lambda each, _, value: any(_is_same(value, one) for one in each),
            "const": lambda one, _, value: _is_same(value, one),
            "items": lambda rule, _, value: (
                not isinstance(value, list) or all(self._fit_all(rule, value))
            ),
            "pattern": lambda rule, _, value: (
                not isinstance(value, str) or re.search(rule, value) is not None
            ),
            "properties": lambda rules, _, value: all(
                self._fits(rule, value[name])
                for name, rule in rules.items()
                if isinstance(value, dict) and name in value
            ),
            "required": lambda names, _, value: (
                not isinstance(value, dict) or all(name in value for name in names)
            ),
            "propertyNames": lambda rule, _, value: (
                not isinstance(value, dict) or all(self._fit_all(rule, value))
            ),
            "additionalProperties": self._others_fit,
        }

    def allow(self, name: str, value: object) -> bool:
        """Whether a value is one that the schema of that name describes."""
        return self._fits(self._schemas[name], value)

    def _fits(self, schema: Mapping[str, Any], value: Any) -> bool:
        for keyword, rule in schema.items():
            if keyword in WORDS:
                continue
            check = self._rules.get(keyword)
            fits = _is_within(keyword, rule, value) if check is None else check(rule, schema, value)
            if not fits:
                return False
        return True

    def _fit(self, schemas: Sequence[Mapping[str, Any]], value: Any) -> list[bool]:
        return [self._fits(schema, value) for schema in schemas]

    def _fit_all(self, schema: Mapping[str, Any], values: Iterable[Any]) -> list[bool]:
        return [self._fits(schema, value) for value in values]

    def _others_fit(self, rule: Any, schema: Mapping[str, Any], value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        others = [value[name] for name in value.keys() - schema.get("properties", {}).keys()]
        return (rule or not others) if isinstance(rule, bool) else all(self._fit_all(rule, others))


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _is_within(keyword: str, rule: float, value: Any) -> bool:
    found = re.fullmatch(r"(min|max)(imum|Items|Length|Properties)", keyword)
    assert found, f"the keyword {keyword} is not known here"
    bound, what = found.groups()
    if what == "imum":
        if not KINDS["number"](value):
            return True
    elif not isinstance(value, SIZES[what]):
        return True
    size = value if what == "imum" else len(value)
    return bool(size >= rule if bound == "min" else size <= rule)
