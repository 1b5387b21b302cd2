"""Typed look-ups in GGUF metadata: a wrong type or value is named with its key."""

from collections.abc import Mapping

from headway.core.base.errors import ModelFileError
from headway.service.loaders.gguf_header import Value, short

MAX_INTEGER = 1 << 40


class Metadata:
    """The values of a header by key; each fault is a ModelFileError naming the key."""

    def __init__(self, path: str, values: Mapping[str, Value]) -> None:
        self.path = path
        self.values = values

    def fail(self, key: str, problem: str) -> ModelFileError:
        """The error for a problem with `key`."""
        return ModelFileError(self.path, f"metadata {key!r} {problem}")

    def integer(self, key: str, default: int | None = None, *, minimum: int = 0) -> int:
        """An integer of at least `minimum`; without a default the key must be there."""
        value = self.values.get(key, default)
        if type(value) is not int:
            raise self._wrong(key, value, "an integer")
        if not minimum <= value <= MAX_INTEGER:
            raise self.fail(key, f"is {value}; it must be from {minimum} to {MAX_INTEGER}")
        return value

    def integer_or_equal(self, key: str, default: int | None = None, *, minimum: int = 0) -> int:
        """The same, where newer files may give one integer a layer; they must be equal."""
        value = self.values.get(key)
        if not isinstance(value, tuple):
            return self.integer(key, default, minimum=minimum)
        if len(set(value)) != 1:
            raise self.fail(key, "differs from layer to layer, which is not supported")
        return Metadata(self.path, {key: value[0]}).integer(key, minimum=minimum)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; without a default the key must be there."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not 0.0 < value < float("inf"):  # NaN is refused too
            raise self.fail(key, f"is {value}; it must be positive and finite")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string, or the default."""
        value = self.values.get(key, default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean, or the default."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "a boolean")
        return value

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """An id inside the vocabulary, or None when the file names none."""
        if key not in self.values:
            return None
        token_id = self.integer(key)
        # Converters write the largest unsigned number for "none".
        if token_id == 0xFFFFFFFF:
            return None
        if token_id >= num_tokens:
            raise self.fail(key, f"is {token_id}, outside the vocabulary of {num_tokens} tokens")
        return token_id

    def strings(self, key: str) -> tuple[str, ...] | None:
        """An array of strings, or None when there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "an array of strings")
        texts = tuple(text for text in value if isinstance(text, str))
        if len(texts) != len(value):
            raise self._wrong(key, value, "an array of strings")
        return texts

    def integers(self, key: str) -> tuple[int, ...] | None:
        """An array of integers, or None when there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "an array of integers")
        numbers = tuple(number for number in value if type(number) is int)
        if len(numbers) != len(value):
            raise self._wrong(key, value, "an array of integers")
        return numbers

    def floats(self, key: str) -> tuple[float, ...] | None:
        """An array of finite floating-point numbers, or None when there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "an array of floating-point numbers")
        numbers = tuple(number for number in value if isinstance(number, float))
        if len(numbers) != len(value):
            raise self._wrong(key, value, "an array of floating-point numbers")
        if any(number != number for number in numbers):
            raise self.fail(key, "holds a NaN; the file is damaged")
        return numbers

    def _wrong(self, key: str, value: object, what: str) -> ModelFileError:
        if value is None:
            return self.fail(key, "is missing; the file is incomplete, convert the model again")
        return self.fail(key, f"is {short(value)}, not {what}")
