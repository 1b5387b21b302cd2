"""Tensors of a GGUF file: opened by memory map, checked whole before anything is read."""

import logging
import struct
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType

from headway.compute.formats.blocks import EXPAND, expand
from headway.compute.formats.permute import unpermute_rows
from headway.core.base.errors import ModelFileError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
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


class WantedTensor(Protocol):
    """What is asked of a file; the families' `TensorSpec` is one."""

    @property
    def name(self) -> str:
        """As in the file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs) for a matrix."""
        ...

    @property
    def is_optional(self) -> bool:
        """A file without it is complete."""
        ...

    @property
    def rotated_heads(self) -> int:
        """> 0: rows are stored as pairs of neighbours for this many heads."""
        ...


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


class GgufTensors:
    """The tensors of one file, those of `specs` only; reads nothing until asked."""

    def __init__(self, path: str, specs: Iterable[WantedTensor], rope_dim: int) -> None:
        """Open and check.

        Raises ModelFileError, naming the file and the tensor, when the file is damaged or
        cut short, or a tensor is missing, of another shape or of an unsupported type.
        Tensors that no spec names give one warning and are ignored.
        """
        self._path = path
        self._rope_dim = rope_dim
        found = {tensor.name: tensor for tensor in _open(path).tensors}
        wanted = {spec.name: spec for spec in specs}
        for spec in wanted.values():
            if spec.name in found:
                _check(path, spec, found[spec.name])
            elif not spec.is_optional:
                raise ModelFileError(path, f"tensor {spec.name} is missing; the file is incomplete")
        unknown = sorted(found.keys() - wanted.keys())
        if unknown:
            log.warning(
                "unknown_tensors_ignored: %s", ", ".join(unknown), extra={"model_path": path}
            )
        self._tensors = {name: tensor for name, tensor in found.items() if name in wanted}

    def __contains__(self, spec: WantedTensor) -> bool:
        """Whether the file holds it."""
        return spec.name in self._tensors

    def num_bytes(self, spec: WantedTensor) -> int:
        """Bytes on disk; 0 for a tensor that the file does not hold."""
        tensor = self._tensors.get(spec.name)
        return 0 if tensor is None else int(tensor.n_bytes)

    def type_name(self, spec: WantedTensor) -> str:
        """Format on disk, e.g. "Q4_1"."""
        return str(self._tensors[spec.name].tensor_type.name)

    def read(self, spec: WantedTensor) -> Floats:
        """The tensor in float32, query and key rows in halves; a new, writable array."""
        values = expand(self.type_name(spec), self._stored(spec)).reshape(spec.shape)
        if spec.rotated_heads:
            values = unpermute_rows(values, spec.rotated_heads, self._rope_dim)
        return values

    def read_blocks(self, spec: WantedTensor) -> Bytes:
        """The tensor as the file has it, [rows, bytes of a row], query and key rows in halves.

        A view of the file's own pages where no row has to move.
        """
        blocks = self._stored(spec)
        if spec.rotated_heads:
            blocks = unpermute_rows(blocks, spec.rotated_heads, self._rope_dim)
        return blocks

    def _stored(self, spec: WantedTensor) -> Bytes:
        raw = self._tensors[spec.name].data.reshape(spec.shape[0] if len(spec.shape) > 1 else 1, -1)
        blocks: Bytes = raw.view(np.uint8)
        return blocks


def _open(path: str) -> Any:
    try:
        return _Reader(path)
    except OSError as error:
        raise ModelFileError(path, f"cannot be opened: {error.strerror or error}") from error
    except DAMAGE as error:
        raise ModelFileError(
            path, f"is not a GGUF file, or is cut short or damaged ({error}); fetch it again"
        ) from error


def _check(path: str, spec: WantedTensor, tensor: Any) -> None:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if shape != spec.shape:
        raise ModelFileError(
            path, f"tensor {spec.name} has shape {shape}, but the model needs {spec.shape}"
        )
    if tensor.tensor_type.name not in EXPAND:
        raise ModelFileError(
            path,
            f"tensor {spec.name} is of type {tensor.tensor_type.name}, which is not supported; "
            f"use a file of {', '.join(EXPAND)}",
        )
