"""Tensors of a GGUF file: opened by memory map, checked whole before anything is read."""

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from headway.compute.formats.stored import StoredTensor, StoredTensors
from headway.compute.formats.weight_file import WantedTensor
from headway.core.base.errors import ModelFileError

# What the library raises for a file that is not GGUF, is cut short or is damaged.
DAMAGE = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
)


class _Reader(GGUFReader):  # type: ignore[misc]  # the library has no types
    """The library's reader, for tensors: it names the one that does not fit into the file.

    Both methods are the library's own hooks. Were they renamed, reading would still work,
    slower and with less said.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        """Step over arrays: a vocabulary read item by item takes two seconds of a start."""
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            found: tuple[int, list[Any], list[int], list[GGUFValueType]]
            found = super()._get_field_parts(orig_offs, raw_type)
            return found
        item_type, count = struct.unpack_from("=IQ", self.data, orig_offs)
        end = orig_offs + 12
        if item_type == GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("=Q", self.data, end)[0]
        elif item_type == GGUFValueType.ARRAY:
            for _ in range(count):
                end += self._get_field_parts(end, item_type)[0]
        else:
            item = self.gguf_scalar_to_np[GGUFValueType(item_type)]
            end += count * np.dtype(item).itemsize
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        built: list[Any] = []
        for field in fields:
            try:
                super()._build_tensors(start_offs, [field])
            except DAMAGE as error:
                raise ModelFileError(
                    str(self.data.filename),
                    f"tensor {field.name} is cut short or damaged ({error}); fetch the file again",
                ) from error
            built += self.tensors
        self.tensors: list[Any] = built


class GgufTensors(StoredTensors):
    """The tensors of one file, those of `specs` only; reads nothing until asked."""

    def __init__(self, path: str, specs: Iterable[WantedTensor], rope_dim: int) -> None:
        """Open and check.

        Raises ModelFileError, naming the file and the tensor, when the file is damaged or
        cut short, or a tensor does not fit its spec.
        """
        super().__init__(path, _tensors(path), specs, rope_dim)


def _tensors(path: str) -> dict[str, StoredTensor]:
    return {
        str(tensor.name): StoredTensor(
            path=path,
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            type_name=str(tensor.tensor_type.name),
            data=tensor.data.reshape(-1).view(np.uint8),
        )
        for tensor in _open(path).tensors
    }


def _open(path: str) -> Any:
    try:
        return _Reader(path)
    except OSError as error:
        raise ModelFileError(path, f"cannot be opened: {error.strerror or error}") from error
    except DAMAGE as error:
        raise ModelFileError(
            path, f"is not a GGUF file, or is cut short or damaged ({error}); fetch it again"
        ) from error
