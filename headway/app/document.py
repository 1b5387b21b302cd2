"""A configuration file with the place of everything in it, so that a message can name the line.

YAML or TOML, by the file's ending. Lines are known of YAML only (TOML's reader keeps none), where
a key that is given twice is refused too: which of the two was meant nobody can know.
"""

import tomllib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from headway.core.base.errors import InvalidSetting

Place = tuple[str | int, ...]  # ("models", 0, "load")
T = TypeVar("T")


class Document:
    """What a file says, and where."""

    def __init__(
        self, path: str, content: dict[str, object], lines: Mapping[Place, int] | None = None
    ) -> None:
        self.path = path
        self.content = content
        self._lines = lines or {}

    def where(self, *place: str | int) -> str:
        """`file:line: models[0].load`, with the line of what is nearest if it has none itself."""
        near = place
        while near and near not in self._lines:
            near = near[:-1]
        line = f":{self._lines[near]}" if near else ""
        return f"{self.path}{line}: {dotted(place)}"

    def convert(self, name: str, kind: type[T]) -> T:
        """A part of the file as a struct; raises InvalidSetting, which names the field.

        The part is taken out of the content: what is left at the end nobody knew.
        """
        raw = self.content.pop(name, None)
        try:
            return msgspec.convert({} if raw is None else raw, kind)
        except msgspec.ValidationError as error:
            reason, place = explained(error)
            raise InvalidSetting(self.where(name, *place), reason) from None


def read_document(path: Path) -> Document:
    """Read the file; raises InvalidSetting."""
    name = f"--config {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(name, f"cannot be read: {_why_unread(error)}") from None
    if path.suffix == ".toml":
        try:
            return Document(str(path), tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidSetting(name, " ".join(str(error).split())) from None
    if path.suffix in {".yaml", ".yml"}:
        return _read_yaml(str(path), name, text)
    raise InvalidSetting(name, "must end in .toml, .yaml or .yml")


def dotted(place: Place) -> str:
    """`models[0].load`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _read_yaml(path: str, name: str, text: str) -> Document:
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            lines = dict(_lines(path, node, ())) if node is not None else {}
            content = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidSetting(name, " ".join(str(error).split())) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise InvalidSetting(name, "must hold keys and values, one setting each")
    return Document(path, content, lines)


def _lines(path: str, node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    """The line of every key and list entry below a node."""
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield (*place, index), child.start_mark.line + 1
            yield from _lines(path, child, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key, child in node.value:
            below: Place = (*place, str(key.value))
            line = key.start_mark.line + 1
            if key.value in seen:
                raise InvalidSetting(
                    f"{path}:{line}: {dotted(below)}",
                    f"is given twice; first in line {seen[key.value]}",
                )
            seen[key.value] = line
            yield below, line
            yield from _lines(path, child, below)


def explained(error: msgspec.ValidationError) -> tuple[str, Place]:
    """msgspec's message without its path, and the path."""
    text, _, path = str(error).rpartition(" - at `")
    if not text:
        text, path = path, ""
    place: list[str | int] = []
    for part in path.rstrip("`").removeprefix("$").replace("[", ".[").split("."):
        if part.startswith("["):
            inner = part.strip("[]")
            if not inner.isdigit():  # "..." stands for any key: the place ends here
                break
            place.append(int(inner))
        elif part:
            place.append(part)
    return text[:1].lower() + text[1:], tuple(place)


def _why_unread(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
