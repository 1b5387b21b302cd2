"""A configuration file with the place of everything in it, so that a message can name the line.

YAML or TOML, by the file's ending. Lines are known of YAML only (TOML's reader keeps none), where
a key that is given twice is refused too: which of the two was meant nobody can know.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from headway.app.misfit import Place, misfit
from headway.core.base.errors import InvalidSetting

T = TypeVar("T")
MAX_PLACES = 100_000  # keys and entries, those behind each alias counted each time
TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
INDEX = re.compile(r"\[(\d+)\]")
AT_LINE = re.compile(r" ?\(at line (\d+), column \d+\)")


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

    def place_of(self, field: str) -> Place:
        """The place that a text as `prices.models.Qwen2.5.prompt` names: keys may have dots."""
        place: Place = ()
        while field:
            step, field = self._step(place, field)
            place = (*place, step)
        return place

    def _step(self, place: Place, field: str) -> tuple[str | int, str]:
        """The next step below a place, and what is left of the text."""
        index = INDEX.match(field)
        if index is not None:
            return int(index[1]), field[index.end() :].removeprefix(".")
        below = [each[-1] for each in self._lines if each[:-1] == place]
        fits = [
            key
            for key in below
            if isinstance(key, str) and (field == key or field.startswith((f"{key}.", f"{key}[")))
        ]
        key = max(fits, key=len, default="") or re.split(r"[.\[]", field, maxsplit=1)[0] or field
        return key, field.removeprefix(key).removeprefix(".")

    def convert(self, name: str, kind: type[T]) -> T:
        """A part of the file as a struct; raises InvalidSetting, which names the field.

        The part is taken out of the content: what is left at the end nobody knew.
        """
        raw = self.content.pop(name, None)
        try:
            return msgspec.convert({} if raw is None else raw, kind)
        except msgspec.ValidationError as error:
            reason, place = misfit({} if raw is None else raw, kind, error)
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
            raise _not_toml(str(path), error) from None
        except RecursionError:
            raise InvalidSetting(str(path), "is nested too deeply") from None
    if path.suffix in {".yaml", ".yml"}:
        return _read_yaml(str(path), text)
    raise InvalidSetting(name, "must end in .toml, .yaml or .yml")


def dotted(place: Place) -> str:
    """`models[0].load`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


class _Loader(yaml.SafeLoader):
    """Tells the line also of a value that its own tag or form does not fit."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value; raises ConstructorError, where the library's own lets other errors out."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this is no {kind}", node.start_mark) from None


def _read_yaml(path: str, text: str) -> Document:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[Place, int] = {}
            for place, line in _lines(path, node, ()) if node is not None else ():
                lines[place] = line
                if len(lines) > MAX_PLACES:
                    raise InvalidSetting(f"{path}:{line}", f"has more than {MAX_PLACES} entries")
            content = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except RecursionError:
        raise InvalidSetting(path, "is nested too deeply, or within itself") from None
    except yaml.YAMLError as error:
        raise _not_yaml(path, text, error) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise InvalidSetting(f"{path}:1", "must hold keys and values, one setting each")
    return Document(path, content, lines)


def _not_yaml(path: str, text: str, error: yaml.YAMLError) -> InvalidSetting:
    """What is wrong with the text, at its line."""
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return InvalidSetting(f"{path}:{line}", "has a character that YAML does not allow")
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return InvalidSetting(path, " ".join(str(error).split()))
    said = " ".join(filter(None, (error.context, error.problem)))
    return InvalidSetting(f"{path}:{error.problem_mark.line + 1}", " ".join(said.split()))


def _not_toml(path: str, error: tomllib.TOMLDecodeError) -> InvalidSetting:
    said = " ".join(str(error).split())
    found = AT_LINE.search(said)
    where = path if found is None else f"{path}:{found[1]}"
    return InvalidSetting(where, AT_LINE.sub("", said))


def _lines(path: str, node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    """The line of every key and list entry below a node."""
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield (*place, index), child.start_mark.line + 1
            yield from _lines(path, child, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if key.tag not in TEXT_TAGS:
                # 7, yes, null or a list: none of them names a setting, a tenant or a model.
                shown = f"{key.value!r:.80} " if isinstance(key, yaml.ScalarNode) else ""
                raise InvalidSetting(
                    f"{path}:{line}: {dotted(place)}".removesuffix(": "),
                    f"has a key {shown}that is no text; put it into quotes",
                )
            below: Place = (*place, key.value)
            if key.value in seen:
                raise InvalidSetting(
                    f"{path}:{line}: {dotted(below)}",
                    f"is given twice; first in line {seen[key.value]}",
                )
            seen[key.value] = line
            yield below, line
            yield from _lines(path, child, below)


def _why_unread(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
