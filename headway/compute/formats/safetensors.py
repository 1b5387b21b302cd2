"""Tensors of a folder of safetensors files, through memory maps."""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from headway.compute.formats.stored import StoredTensor, StoredTensors
from headway.compute.formats.weight_file import Bytes, WantedTensor
from headway.core.base.errors import ModelFileError
from headway.core.base.safetensors import FolderTensor, folder_tensors


class SafetensorsFolder(StoredTensors):
    """The tensors of all files of a folder; reads nothing until asked."""

    def __init__(self, path: str, specs: Iterable[WantedTensor]) -> None:
        """Open and check.

        Raises ModelFileError, naming the file and the tensor, when a file is missing, damaged
        or cut short, or a tensor does not fit its spec.
        """
        found = folder_tensors(_Files(path))
        files = sorted({tensor.file for tensor in found.values()})
        maps = {file: _map(os.path.join(path, file)) for file in files}
        tensors = {name: _stored(path, tensor, maps) for name, tensor in found.items()}
        super().__init__(path, tensors, specs, rope_dim=0)


class _Files:
    """A `core.base.safetensors.Folder`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def names(self) -> Sequence[str]:
        return sorted(os.listdir(self.path))

    def size(self, name: str) -> int | None:
        path = os.path.join(self.path, name)
        return os.path.getsize(path) if os.path.isfile(path) else None

    def read(self, name: str, offset: int, count: int) -> bytes:
        with open(os.path.join(self.path, name), "rb") as file:
            file.seek(offset)
            return file.read(count)


def _map(path: str) -> Bytes:
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"cannot be mapped: {error}") from error


def _stored(path: str, tensor: FolderTensor, maps: dict[str, Bytes]) -> StoredTensor:
    return StoredTensor(
        path=os.path.join(path, tensor.file),
        shape=tensor.shape,
        type_name=tensor.type_name,
        data=maps[tensor.file][tensor.offset : tensor.offset + tensor.num_bytes],
    )
