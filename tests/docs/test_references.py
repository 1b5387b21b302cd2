"""What documents point to is there: files, headings, options, targets of make."""

import argparse
import re

import pytest

from headway.app import admin, chat, explain, usage
from headway.app.bench_commands import COMMANDS, SIMULATE
from headway.app.options import OPTIONS
from tests.docs.documents import ROOT, Document, documents

DOCUMENTS = documents()
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|md|toml|sh|lock|jsonl|in)")
FOLDER = re.compile(r"(?:headway|core|compute|service|app|tests|docs|benchmarks|tools)/[\w./-]*\w")

# Options of other programs that the documents show.
OTHERS = {"--upgrade", "--write", "--no-deps", "--config", "--add", "--candidate", "--data"}
OTHERS |= {"--parallel", "--scheduling-policy", "--enable-priority-scheduling"}
OTHERS |= {"--metrics", "--enable-metrics"}
# benchmarks/README.md shows options of its own scripts, which check themselves.
WITH_OPTIONS = [d for d in DOCUMENTS if not d.name.startswith("benchmarks/")]


def by_name(document: Document) -> str:
    return document.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_link_leads_somewhere(document: Document) -> None:
    for target in document.links():
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (document.path.parent / name).resolve() if name else document.path
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in Document(path, path.read_text()).anchors(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_file_named_in_code_is_there(document: Document) -> None:
    parts = [ROOT / "headway" / part for part in ("core", "compute", "service", "app")]
    bases = (ROOT, ROOT / "headway", *parts, document.path.parent)
    for piece in document.code():
        if not (FILE.fullmatch(piece) or FOLDER.fullmatch(piece)) or "/" not in piece:
            continue
        assert any((base / piece).exists() for base in bases), f"{document.name}: {piece}"


@pytest.mark.parametrize("document", WITH_OPTIONS, ids=by_name)
def test_every_option_named_is_one(document: Document) -> None:
    known: set[str] = set()
    parsers = [argparse.ArgumentParser()]
    chat.add_arguments(parsers[0], is_chat=True)
    for command in (*COMMANDS.values(), SIMULATE):
        parsers.append(argparse.ArgumentParser())
        command.declare(parsers[-1])
    parsers.append(argparse.ArgumentParser())
    admin.add_arguments(parsers[-1])
    for late in (explain, usage):
        parsers.append(argparse.ArgumentParser())
        late.add_arguments(parsers[-1])
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()  # and those of it, as the loop comes to them
        known |= {name for action in parser._actions for name in action.option_strings}
    known |= {f"--{option.name}" for option in OPTIONS} | OTHERS
    for piece in document.code():
        for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", piece):
            assert name in known, f"{document.name}: {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_target_of_make_named_is_one(document: Document) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for piece in document.code():
        for name in re.findall(r"(?m)^make ([a-z0-9]+)", piece):
            assert name in targets, f"{document.name}: make {name}"


def test_the_readme_shows_the_defaults_that_the_code_has() -> None:
    text = (ROOT / "README.md").read_text()
    assert "`127.0.0.1`, `8000`" in text
    for row in ("| `--max-num-seqs N` | answers computed at once | 32 |",):
        assert row in text
