"""The `tokenizers` library's own description of a tokenizer, as engines that follow it."""

from collections.abc import Iterator, Mapping

import msgspec
from tokenizers import Tokenizer as Engine

from headway.core.base.errors import ModelFileError

# Normalizers, and by how much each may shorten a text's bytes at most: canonical
# composition makes one syllable of 3 bytes from three letters of 3 bytes.
SHRINKS: Mapping[str, int] = {"Prepend": 1, "Replace": 1, "NFD": 1, "NFC": 3}


# Pre-tokenizers that leave every character of a text in some word.
KEEPS_ALL = frozenset(
    {"Sequence", "Metaspace", "ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"}
)


def pipelines(path: str, pipeline: str) -> tuple[Engine, Engine]:
    """The engine for text that begins a prompt, and that for all other text.

    Raises ModelFileError for a description that the library does not take.
    """
    engine = _engine(path, pipeline)
    form = msgspec.json.decode(pipeline)
    first = [each for each in _parts(form) if each.get("prepend_scheme") == "first"]
    if not first:
        return engine, engine
    for each in first:
        each["prepend_scheme"] = "never"
    return engine, _engine(path, msgspec.json.encode(form).decode())


def shrinkage(pipeline: str) -> int | None:
    """By how much normalizing may shorten a text's bytes at most; None: nobody knows."""
    factor = 1
    form = msgspec.json.decode(pipeline)
    for each in _parts(form, "normalizer"):
        kind = str(each.get("type"))
        if kind == "Sequence":
            continue
        if kind not in SHRINKS or (kind == "Replace" and each.get("pattern") != {"String": " "}):
            return None
        factor *= SHRINKS[kind]
    for each in _parts(form, "pre_tokenizer"):
        kind = str(each.get("type"))
        if "type" in each and (kind not in KEEPS_ALL or each.get("behavior") == "Removed"):
            return None
    return factor


def _engine(path: str, pipeline: str) -> Engine:
    try:
        return Engine.from_str(pipeline)
    except Exception as error:
        # The library raises nothing more special.
        raise ModelFileError(
            path, f"tokenizer.json is not what the tokenizers library takes: {error}"
        ) from error


def _parts(form: dict[str, object], *keys: str) -> Iterator[dict[str, object]]:
    """Every object of the description's rules, without its words."""
    for key in keys or ("normalizer", "pre_tokenizer"):
        stack = [form.get(key)]
        while stack:
            found = stack.pop()
            if isinstance(found, dict):
                yield found
                stack += found.values()
            elif isinstance(found, list):
                stack += found
