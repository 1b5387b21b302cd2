"""The files of a model's folder: a bounded reading of its JSON, and its weights' headers."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from headway.core.base.errors import ModelFileError
from headway.service.loaders.gguf_header import Value
from headway.service.loaders.gguf_metadata import Metadata

MAX_JSON_BYTES = 1 << 27  # the largest tokenizers have some 2**25
MAX_DEPTH = 8  # of objects within objects in a configuration


class FolderFiles:
    """A `core.base.safetensors.Folder` that also reads JSON; links are followed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def names(self) -> Sequence[str]:
        """All names in the folder, sorted; raises OSError."""
        return sorted(os.listdir(self.path))

    def size(self, name: str) -> int | None:
        """Bytes of a regular file; None for what is none."""
        path = os.path.join(self.path, name)
        return os.path.getsize(path) if os.path.isfile(path) else None

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes; raises OSError."""
        with open(os.path.join(self.path, name), "rb") as file:
            file.seek(offset)
            return file.read(count)

    def fail(self, name: str, problem: str) -> ModelFileError:
        """The error for a problem with one file."""
        return ModelFileError(os.path.join(self.path, name), problem)

    def text(self, name: str) -> str | None:
        """A file of UTF-8 text, or None when there is none; raises ModelFileError."""
        try:
            size = self.size(name)
            if size is None:
                return None
            if size > MAX_JSON_BYTES:
                raise self.fail(name, f"has {size} bytes, over the limit of {MAX_JSON_BYTES}")
            return self.read(name, 0, size).decode()
        except OSError as error:
            raise self.fail(name, f"cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise self.fail(name, "is not UTF-8; the file is damaged") from None

    def json(self, name: str) -> dict[str, object] | None:
        """A file that holds one JSON object, or None when there is none."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError) as error:
            raise self.fail(name, f"is damaged: {error}") from None

    def values(self, name: str) -> Metadata | None:
        """A JSON object as typed look-ups: "a.b" is the value of b in a; nulls are left out."""
        found = self.json(name)
        if found is None:
            return None
        values: dict[str, Value] = {}
        _flatten(found, "", values, MAX_DEPTH)
        return Metadata(os.path.join(self.path, name), values)


def _flatten(
    found: Mapping[str, object], prefix: str, values: dict[str, Value], depth: int
) -> None:
    for key, value in found.items():
        name = prefix + key
        if isinstance(value, dict):
            if depth:
                _flatten(value, name + ".", values, depth - 1)
        elif isinstance(value, list):
            scalars = tuple(item for item in value if isinstance(item, bool | int | float | str))
            if len(scalars) == len(value):
                values[name] = scalars
        elif isinstance(value, bool | int | float | str):
            values[name] = value
