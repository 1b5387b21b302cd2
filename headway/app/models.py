"""`headway models`: which models are here, and what one file holds and needs."""

import argparse
import re
from collections import Counter
from math import prod
from pathlib import Path

import msgspec
from platformdirs import user_cache_path

from headway.app.model_source import locate
from headway.core.base.errors import HeadwayError, ModelFileError, StartError
from headway.core.base.units import blocks_for
from headway.service.control.memory import available_bytes
from headway.service.loaders.builtin import BUILTIN, fetch_builtin
from headway.service.loaders.gguf_header import read_header
from headway.service.loaders.hub_cache import cached_models, cached_path
from headway.service.loaders.hub_choice import read_reference
from headway.service.loaders.model_files import open_model
from headway.service.loaders.progress import ConsoleProgress

EXIT_OK = 0
BUILTIN_NAME = "builtin"
GIB, MIB = 1 << 30, 1 << 20
LICENCE = re.compile(r"^license:\s*(\S.*)$", re.MULTILINE)
BLOCK = 16  # tokens in a KV block, as `headway serve` has them by default
SCALE_BYTES = 4.0  # of each head of a position, with K and V in 8 bits


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the list; `problem` says why it cannot be served."""

    name: str  # what --model takes
    path: str | None  # None: it is not whole here
    is_here: bool
    is_of_hub: bool = False
    file_bytes: int = 0
    architecture: str | None = None
    parameters: int = 0
    context_length: int = 0
    kv_bytes_a_token: int = 0  # as bfloat16
    licence: str | None = None
    has_template: bool = False
    fits: bool | None = None  # its weights into the memory that is free now; None: unknown
    problem: str | None = None


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `show` tells of one file."""

    path: str
    name: str
    architecture: str
    parameters: int
    file_bytes: int
    weight_bytes: int
    types: dict[str, int]  # of the tensors -> how many
    context_length: int
    vocabulary: int
    kv_bytes_a_token: dict[str, int]  # by the type of K and V
    chat_template: str | None  # the template's first line
    licence: str | None
    free_bytes: int | None  # of this machine now; None: unknown
    kv_tokens_that_fit: dict[str, int] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs and their options."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, text in (
        ("list", "the models in the cache folders, those of hubs too"),
        ("pull", "download a model now, and check it"),
        ("show", "what a model's file holds and what it needs"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("--cache-dir", default="", help="folder for downloaded models")
        if name == "show":
            verb.add_argument(
                "model", nargs="?", default=BUILTIN_NAME, metavar="MODEL",
                help="a GGUF file, a folder, a name or a hub's id from the list, or "
                f"{BUILTIN_NAME} (the default)",
            )  # fmt: skip
        if name == "pull":
            verb.add_argument(
                "model", nargs="?", default=BUILTIN_NAME, metavar="MODEL",
                help="a hub's ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf, "
                f"or {BUILTIN_NAME} (the default)",
            )  # fmt: skip
        else:
            verb.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: argparse.Namespace) -> int:
    """The whole command; raises StartError."""
    folder = Path(chosen.cache_dir) if chosen.cache_dir else user_cache_path("headway")
    if chosen.verb == "pull":
        print(pull(chosen.model, folder))
    elif chosen.verb == "list":
        hubs = hub_cache()
        found = [*models_in(folder), *models_of_hubs(hubs)]
        print(_json(found) if chosen.json else listing(found, folder, hubs))
    else:
        shown = show(_path_of(chosen.model, folder))
        print(_json(shown) if chosen.json else telling(shown))
    return EXIT_OK


def pull(model: str, folder: Path) -> str:
    """Path of a model that is here afterwards, every byte of it checked; raises StartError."""
    if model != BUILTIN_NAME and (Path(model).exists() or read_reference(model) is None):
        raise StartError(
            f"{model}: is no model of a hub; name one as ORG/NAME or ORG/NAME:FILE.gguf"
        )
    console = ConsoleProgress()
    try:
        named = None if model == BUILTIN_NAME else model
        return locate(named, console, folder, verify=True).path
    finally:
        console.close()


def pull_builtin(folder: Path | None, *, verify: bool = False) -> str:
    """Path of the built-in model, downloaded with a progress line if it is not here."""
    console = ConsoleProgress()
    try:
        return fetch_builtin(console, folder, verify=verify)
    finally:
        console.close()


def models_in(folder: Path) -> list[Found]:
    """The built-in model, here or not, and every other GGUF file of a folder."""
    paths = {folder / BUILTIN.file_name, *folder.glob("*.gguf")}
    return [_found(path) for path in sorted(paths)]


def hub_cache() -> Path:
    """Where models of hubs lie."""
    # Here and not above: the hub's library takes a quarter of a second.
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def models_of_hubs(folder: Path) -> list[Found]:
    """Every model of a hub's cache, by its id."""
    found = []
    for reference, path, problem in cached_models(folder):
        if path is None:
            found.append(
                Found(name=str(reference), path=None, is_here=True, is_of_hub=True, problem=problem)
            )
        else:
            each = _found(Path(path))
            found.append(msgspec.structs.replace(each, name=str(reference), is_of_hub=True))
    return found


def show(path: str) -> Shown:
    """Read one file's header, or a folder's; raises ModelFileError."""
    file = open_model(path)
    card = file.card
    scale = SCALE_BYTES / card.head_dim
    per_token = {
        "bfloat16": card.kv_bytes_per_token(2.0),
        "int8": card.kv_bytes_per_token(1.0 + scale),
    }
    free = available_bytes()
    left = None if free is None else max(0, free - file.weight_bytes)
    template = file.chat_template
    return Shown(
        path=path,
        name=card.name,
        architecture=card.architecture,
        parameters=sum(prod(tensor.shape) for tensor in file.tensors),
        file_bytes=file.file_bytes,
        weight_bytes=file.weight_bytes,
        types=dict(Counter(tensor.type_name for tensor in file.tensors)),
        context_length=card.context_length,
        vocabulary=card.vocab_size,
        kv_bytes_a_token=per_token,
        chat_template=template.strip().splitlines()[0] if template and template.strip() else None,
        licence=_licence(Path(path)),
        free_bytes=free,
        kv_tokens_that_fit=None
        if left is None
        else {name: left // size // BLOCK * BLOCK for name, size in per_token.items()},
    )


def listing(found: list[Found], folder: Path, hubs: Path) -> str:
    """The list for people."""
    lines = [f"models in {folder}:", *(_line(each) for each in found if not each.is_of_hub)]
    of_hubs = [_line(each) for each in found if each.is_of_hub]
    if of_hubs:
        lines += [f"models of a hub in {hubs}:", *of_hubs]
    return "\n".join(lines)


def _line(each: Found) -> str:
    if not each.is_here:
        return f"  {each.name}  not downloaded yet: `headway models pull`"
    if each.problem is not None:
        return f"  {each.name}  cannot be served: {each.problem}"
    remarks = "" if each.has_template else "; no chat template"
    remarks += "; its weights are more than the memory that is free" if each.fits is False else ""
    return (
        f"  {each.name}  {each.architecture}, {_count(each.parameters)} parameters, "
        f"{_size(each.file_bytes)}, {each.context_length:,} tokens of context, "
        f"{each.kv_bytes_a_token:,} bytes of KV a token{remarks}"
    )


def telling(shown: Shown) -> str:
    """One file's facts for people."""
    kv = ", ".join(f"{size:,} ({name})" for name, size in shown.kv_bytes_a_token.items())
    types = ", ".join(f"{count} {name}" for name, count in sorted(shown.types.items()))
    rows = [
        ("name", shown.name),
        ("file", f"{shown.path}, {_size(shown.file_bytes)}"),
        ("architecture", shown.architecture),
        ("parameters", _count(shown.parameters)),
        ("tensors", types),
        ("context", f"{shown.context_length:,} tokens"),
        ("vocabulary", f"{shown.vocabulary:,} tokens"),
        ("KV bytes a token", kv),
        ("chat template", shown.chat_template or "none: no /v1/chat"),
        ("licence", shown.licence or "the file does not say"),
        ("this machine", _fit(shown)),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _fit(shown: Shown) -> str:
    if shown.free_bytes is None or shown.kv_tokens_that_fit is None:
        return "does not say how much memory is free"
    free = f"{_size(shown.free_bytes)} free"
    if shown.free_bytes < shown.weight_bytes:
        return f"too small: {free}, the weights alone take {_size(shown.weight_bytes)}"
    tokens = shown.kv_tokens_that_fit["bfloat16"]
    whole = tokens // max(1, BLOCK * blocks_for(shown.context_length, BLOCK))
    return (
        f"{free}: beside the weights {tokens:,} tokens of KV at most, "
        f"{whole:,} whole contexts; `headway serve` takes 40 % of that unless told otherwise"
    )


def _licence(path: Path) -> str | None:
    """What the file says of its licence; of a folder, its README's first lines."""
    if not path.is_dir():
        licence = read_header(str(path)).values.get("general.license")
        return licence if isinstance(licence, str) else None
    readme = path / "README.md"
    if not readme.is_file():
        return None
    parts = readme.read_text(encoding="utf-8", errors="replace").split("---\n", maxsplit=2)
    if len(parts) < 3 or parts[0]:
        return None
    found = LICENCE.search(parts[1])
    return None if found is None else found[1].strip()


def _found(path: Path) -> Found:
    if not path.exists():
        return Found(name=path.name, path=str(path), is_here=False)
    try:
        file = open_model(str(path))
    except HeadwayError as error:
        size = _bytes_of(path)
        return Found(
            name=path.name, path=str(path), is_here=True, file_bytes=size, problem=error.message
        )
    free = available_bytes()
    return Found(
        name=path.name,
        path=str(path),
        is_here=True,
        file_bytes=file.file_bytes,
        architecture=file.card.architecture,
        parameters=sum(prod(tensor.shape) for tensor in file.tensors),
        context_length=file.card.context_length,
        kv_bytes_a_token=file.card.kv_bytes_per_token(2.0),
        licence=_licence(path),
        has_template=bool(file.chat_template),
        fits=None if free is None else file.weight_bytes <= free,
    )


def _bytes_of(path: Path) -> int:
    """Of a file, or of all files of a folder."""
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _path_of(model: str, folder: Path) -> str:
    if model == BUILTIN_NAME:
        path = folder / BUILTIN.file_name
        if not path.exists():
            raise StartError("the built-in model is not here yet; get it: headway models pull")
        return str(path)
    named = folder / model
    if "/" not in model and named.exists():
        return str(named)
    reference = None if Path(model).exists() else read_reference(model)
    if reference is None:
        return model
    try:
        return cached_path(reference, hub_cache())
    except ModelFileError as error:
        raise StartError(f"{error.message}; get it: headway models pull {model}") from None


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:,.0f} MiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.0f} M"
