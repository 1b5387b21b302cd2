"""Which tensors a folder of safetensors files holds, and where: from headers, checked whole.

Both the server's process and an executor ask this; each brings its own way to read files.

A file is 8 bytes with the length of its header, little-endian; the header, JSON by tensor
name; then the data. A model of several files has an index, which names the file of each
tensor. Source: the format's description in the safetensors repository.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec

from headway.core.base.errors import ModelFileError

SUFFIX = ".safetensors"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_INDEX_BYTES = 100_000_000
LENGTH_BYTES = 8
NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # those of model files; never opened
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "U64": 8,
    "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class Folder(Protocol):
    """A folder of files; methods raise OSError."""

    path: str

    def names(self) -> Sequence[str]:
        """All names in it, sorted."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a regular file, links followed; None for what is none."""
        ...

    def read(self, name: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on."""
        ...


class FolderTensor(NamedTuple):
    """Where one tensor lies."""

    name: str
    file: str  # its name in the folder
    type_name: str  # "F32", "BF16", ... as the format writes it
    shape: tuple[int, ...]  # (outputs, inputs) for a matrix
    offset: int  # bytes from the start of the file
    num_bytes: int


_Length = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[_Length, ...]
    data_offsets: tuple[_Length, _Length]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def folder_tensors(folder: Folder) -> dict[str, FolderTensor]:
    """Every tensor by name; raises ModelFileError that names the file, and the tensor.

    Where an index says in which file a tensor is, others of that name are not looked at. A
    folder without one must be a single file, or files that do not share a name.
    """
    try:
        if folder.size(INDEX) is not None:
            return _indexed(folder)
        return _unindexed(folder)
    except OSError as error:
        raise ModelFileError(folder.path, f"cannot be read: {error.strerror or error}") from None


def _indexed(folder: Folder) -> dict[str, FolderTensor]:
    where = _read_index(folder)
    headers = {
        name: {tensor.name: tensor for tensor in _header(folder, name, f"{INDEX} names it")}
        for name in sorted(set(where.values()))
    }
    found = {}
    for name, file in where.items():
        if name not in headers[file]:
            raise ModelFileError(
                f"{folder.path}/{file}", f"does not hold tensor {name}, which {INDEX} says it does"
            )
        found[name] = headers[file][name]
    return found


def _read_index(folder: Folder) -> dict[str, str]:
    path = f"{folder.path}/{INDEX}"
    try:
        raw = folder.read(INDEX, 0, MAX_INDEX_BYTES)
        where = msgspec.json.decode(raw, type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise ModelFileError(path, f"is damaged: {error}") from None
    for name, file in where.items():
        if "/" in file or not file.endswith(SUFFIX):
            raise ModelFileError(
                path, f"names {file[:80]!r} for tensor {name[:80]}, which is no file of the folder"
            )
    if not where:
        raise ModelFileError(path, "names no tensor")
    return where


def _unindexed(folder: Folder) -> dict[str, FolderTensor]:
    files = [name for name in folder.names() if name.endswith(SUFFIX)]
    if not files:
        raise ModelFileError(folder.path, _no_weights(folder.names()))
    files = [SINGLE] if SINGLE in files else files
    for name in files:
        _check_numbers(folder, name, files)
    found: dict[str, FolderTensor] = {}
    for tensor in (tensor for name in files for tensor in _header(folder, name, "it is listed")):
        if tensor.name in found:
            raise ModelFileError(
                f"{folder.path}/{tensor.file}",
                f"holds tensor {tensor.name}, and so does {found[tensor.name].file}; without "
                f"{INDEX} it is not known which one is meant",
            )
        found[tensor.name] = tensor
    return found


def _no_weights(names: Iterable[str]) -> str:
    pickle = next((name for name in names if name.endswith(PICKLES)), None)
    if pickle is not None:
        return (
            f"has its weights in {pickle}, a pickle, which can run code when it is opened; "
            "get the model's safetensors files, or convert it to them"
        )
    return f"holds no {SUFFIX} file; the model is incomplete, fetch it again"


def _check_numbers(folder: Folder, name: str, files: Sequence[str]) -> None:
    """A file that is called one of several must have the others beside it."""
    match = NUMBERED.fullmatch(name)
    if match is None:
        return
    stem, _, total = match.groups()
    for number in range(1, min(int(total), 10_000) + 1):
        other = f"{stem}-{number:05}-of-{total}{SUFFIX}"
        if other not in files:
            raise ModelFileError(
                f"{folder.path}/{other}", "is missing; the model is incomplete, fetch it again"
            )


def _header(folder: Folder, name: str, why: str) -> list[FolderTensor]:
    path = f"{folder.path}/{name}"
    size = folder.size(name)
    if size is None:
        is_there = name in folder.names()
        said = "is not a regular file" if is_there else f"is missing ({why})"
        raise ModelFileError(path, f"{said}; the model is incomplete, fetch it again")
    length = int.from_bytes(folder.read(name, 0, LENGTH_BYTES), "little")
    begin = LENGTH_BYTES + length
    if size < LENGTH_BYTES or begin > size or length > MAX_HEADER_BYTES:
        raise ModelFileError(
            path,
            f"is not a safetensors file, or is cut short: a header of {length} bytes in a file "
            f"of {size}",
        )
    try:
        raw = msgspec.json.decode(
            folder.read(name, LENGTH_BYTES, length), type=dict[str, msgspec.Raw]
        )
        raw.pop("__metadata__", None)
        entries = {key: msgspec.json.decode(value, type=_Entry) for key, value in raw.items()}
    except msgspec.DecodeError as error:
        raise ModelFileError(path, f"has a damaged header: {error}") from None
    return [_tensor(path, name, key, entry, (begin, size)) for key, entry in entries.items()]


def _tensor(path: str, file: str, name: str, entry: _Entry, data: tuple[int, int]) -> FolderTensor:
    item = ITEM_BYTES.get(entry.dtype)
    if item is None:
        raise ModelFileError(
            path,
            f"tensor {name[:200]} is of type {entry.dtype[:40]!r}, which is not known; known: "
            + ", ".join(ITEM_BYTES),
        )
    begin, end = entry.data_offsets
    if end - begin != math.prod(entry.shape) * item:
        raise ModelFileError(
            path,
            f"tensor {name[:200]} has {end - begin} bytes for the shape {entry.shape} of "
            f"{entry.dtype}; the file is damaged",
        )
    start, size = data
    if start + end > size:
        raise ModelFileError(
            path, f"tensor {name[:200]} is cut short; the file is damaged, fetch it again"
        )
    return FolderTensor(name, file, entry.dtype, entry.shape, start + begin, end - begin)
