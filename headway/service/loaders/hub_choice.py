"""Which model of a hub is meant, and which of a repository's files serving it needs."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import Any, NamedTuple

from headway.core.base.errors import ModelFileError

REFERENCE = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(@(?P<revision>[\w./-]+))?(:(?P<file>[\w./ -]+\.gguf))?",
    re.IGNORECASE,
)
BESIDE_WEIGHTS = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*.json",
    "chat_template*.jinja",
    "README.md",  # says which licence it has
)
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
SHOWN = 8  # file names in one message


class HubReference(NamedTuple):
    """A model on a hub: `org/name`, `org/name@revision`, `org/name:file.gguf`."""

    repo: str
    revision: str
    file: str | None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{revision}" + (f":{self.file}" if self.file else "")


def read_reference(text: str) -> HubReference | None:
    """The hub's model that a `--model` names, or None when it can only be a path.

    `models/a.gguf` is a path: a repository whose name ends in `.gguf` has to be named with a
    file of it.
    """
    found = REFERENCE.fullmatch(text)
    if found is None or (found["file"] is None and text.lower().endswith(".gguf")):
        return None
    return HubReference(found["repo"], found["revision"] or "main", found["file"])


def choose(reference: HubReference, names: Collection[str]) -> list[str]:
    """Files to have, in the order to fetch them; with an index, its shards are not yet named.

    Raises ModelFileError when the repository has nothing that can be served. Files in folders
    (other formats, originals) are never taken unless one is named.
    """
    if reference.file is not None:
        if reference.file not in names:
            raise ModelFileError(
                str(reference), f"the repository has no such file; it has {_ggufs(names)}"
            )
        return [reference.file]
    top = sorted(name for name in names if "/" not in name)
    if "config.json" in top and (weights := _weights(top)):
        beside = [name for name in top if any(fnmatch(name, each) for each in BESIDE_WEIGHTS)]
        return [*beside, *weights]
    return _the_one_gguf(reference, names)


def shards(reference: HubReference, index: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Files that an index names; raises ModelFileError for one that is not there."""
    table = index.get("weight_map")
    values = list(table.values()) if isinstance(table, dict) else []
    if not values or not all(isinstance(value, str) for value in values):
        raise ModelFileError(str(reference), f"{INDEX} has no weight_map from tensors to files")
    found = sorted(set(values))
    for name in found:
        if name not in names or not name.endswith(".safetensors"):
            raise ModelFileError(str(reference), f"{INDEX} names {name!r}, which is not there")
    return found


def _weights(top: Collection[str]) -> list[str]:
    if INDEX in top:
        return [INDEX]
    if SINGLE in top:
        return [SINGLE]
    return [name for name in top if name.endswith(".safetensors")]


def _the_one_gguf(reference: HubReference, names: Collection[str]) -> list[str]:
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise ModelFileError(
            str(reference), f"name one file, as in {reference.repo}:{ggufs[0]}; {_ggufs(names)}"
        )
    pickles = sorted(name for name in names if name.lower().endswith(PICKLES))
    if pickles:
        raise ModelFileError(
            str(reference),
            f"its weights are pickles only ({pickles[0]}), which can run code and are never "
            "loaded; use a repository with safetensors or GGUF files",
        )
    raise ModelFileError(
        str(reference), "has no weights: neither config.json with *.safetensors nor *.gguf"
    )


def _ggufs(names: Collection[str]) -> str:
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    more = f" and {len(ggufs) - SHOWN} more" if len(ggufs) > SHOWN else ""
    return f"its GGUF files: {', '.join(ggufs[:SHOWN])}{more}" if ggufs else "no GGUF files"
