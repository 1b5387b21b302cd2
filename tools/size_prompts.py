"""Prompts that are known to need a small, a medium or a large model, for the size classifier.

Made from the templates in size_families.yaml, and, for what they are about, from texts and code of
the standard library: nothing is downloaded. The same call gives the same prompts under the same
release of Python.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from string import Formatter
from typing import Any, NamedTuple

import msgspec
import yaml

from headway.core.route.size import Size

FAMILIES = Path(__file__).with_name("size_families.yaml")
MODULES = (
    *("textwrap", "heapq", "bisect", "shutil", "statistics", "queue", "sched", "fnmatch"),
    *("string", "difflib", "configparser", "calendar", "threading", "tempfile", "csv", "zipfile"),
)
LANGUAGES = ("en", "zh")
A_CELL = 22  # prompts of one family, size and language, where the templates give as many
PASSAGE_CHARS = (200, 900)
LONG_CHARS = (1500, 6000)
CODE_LINES, LONG_CODE_LINES = (6, 30), (50, 160)


class Example(NamedTuple):
    """One prompt and the size that it needs."""

    family: str
    size: Size
    language: str
    text: str


class Families(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of templates."""

    unseen: tuple[str, ...]  # families that are never trained on
    families: dict[str, dict[Size, dict[str, list[str]]]]
    slots: dict[str, Any]


class Material:
    """What slots are filled with, drawn from a generator."""

    def __init__(self, slots: Mapping[str, Any], rng: Random) -> None:
        self._slots = slots
        self._rng = rng
        self._passages = [text for text in paragraphs() if len(text) >= PASSAGE_CHARS[0]]
        self._functions = [code for name in MODULES for code in functions(name)]

    def fill(self, template: str, language: str) -> str:
        """The template with something in every slot."""
        names = {name for _, name, _, _ in Formatter().parse(template) if name}
        return template.format(**{name: self._value(name, language) for name in sorted(names)})

    def _value(self, name: str, language: str) -> str:
        rng = self._rng
        if name in {"n", "m"}:
            return str(rng.randint(3, 30) if name == "n" else rng.randint(40, 900))
        if name in {"passage", "long_passage"}:
            return self._passage(LONG_CHARS if name == "long_passage" else PASSAGE_CHARS, language)
        if name in {"code", "long_code"}:
            return self._code(LONG_CODE_LINES if name == "long_code" else CODE_LINES)
        return str(rng.choice(self._slots[name][language]))

    def _passage(self, chars: tuple[int, int], language: str) -> str:
        """Chinese says the same in fewer characters."""
        scale = 3 if language == "zh" else 1
        wanted = self._rng.randint(*chars) // scale
        texts = self._slots["zh_sentences"] if language == "zh" else self._passages
        parts: list[str] = []
        while sum(map(len, parts)) < wanted:
            parts.append(self._rng.choice(texts))
        return ("" if language == "zh" else "\n\n").join(parts)[: wanted + 200 // scale]

    def _code(self, lines: tuple[int, int]) -> str:
        wanted = self._rng.randint(*lines)
        parts: list[str] = []
        while sum(part.count("\n") + 1 for part in parts) < wanted:
            parts.append(self._rng.choice(self._functions))
        return "\n".join("\n\n".join(parts).splitlines()[: wanted + 4])


def load() -> Families:
    """The templates."""
    return msgspec.convert(yaml.safe_load(FAMILIES.read_text(encoding="utf-8")), Families)


def examples(seed: int = 0, a_cell: int = A_CELL) -> list[Example]:
    """All prompts, without doubles, in the order of the file."""
    file, rng = load(), Random(seed)
    material = Material(file.slots, rng)
    made: list[Example] = []
    for family, sizes in file.families.items():
        for size, languages in sizes.items():
            for language in LANGUAGES:
                texts = _texts(languages[language], language, material, a_cell)
                made += [Example(family, size, language, text) for text in texts]
    return made


def _texts(
    templates: Sequence[str], language: str, material: Material, count: int
) -> Iterator[str]:
    """Each template in its turn; those without slots once."""
    seen: set[str] = set()
    for turn in range(3 * count):
        text = material.fill(templates[turn % len(templates)], language)
        if text not in seen and len(seen) < count:
            seen.add(text)
            yield text


def paragraphs() -> list[str]:
    """Of the language reference, those that are prose."""
    found = []
    for name in sorted(topics):
        for text in topics[name].split("\n\n"):
            joined = " ".join(text.split())
            if joined and joined[0].isupper() and joined.endswith(".") and "::" not in joined:
                found.append(joined)
    return found


def functions(module: str) -> list[str]:
    """Source of a module's functions, nested ones with what they stand in."""
    source = inspect.getsource(importlib.import_module(module))
    lines = source.splitlines()
    return [
        "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and CODE_LINES[0] <= (node.end_lineno or 0) - node.lineno
    ]
